"""Transfer acquisition functions by rankings (Wistuba, Schilling, Schmidt-Thieme, 2018)."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch, log_expected_improvement
from fedhpo_gym.agents.transfer.tst_r import TOP, similarities


class TransferAcquisition(EnsembleSearch):
    """TAF-R: its own expected improvement, and how much sources would improve, by similarity."""

    def transfer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        known = self.predicted(own.points)[0]
        weights = similarities(known, own.scores)
        gains = np.maximum(self.predicted(candidates)[0] - known.max(axis=1)[:, None], 0.0)
        model = self.model(own)
        gain = np.exp(log_expected_improvement(*model.predict(candidates), model.best))
        return np.asarray((TOP * gain + weights @ gains) / (TOP + weights.sum()))
