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
        known = self.means(own.points)
        weights = similarities(known, own.scores)
        used = np.flatnonzero(weights)
        best = known[used].max(axis=1, keepdims=True)
        gains = np.maximum(self.means(candidates, used) - best, 0.0)
        model = self.model(own)
        gain = np.exp(log_expected_improvement(*model.predict(candidates), model.best))
        return np.asarray((TOP * gain + weights[used] @ gains) / (TOP + weights.sum()))
