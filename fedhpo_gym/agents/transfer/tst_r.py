"""Two-stage transfer surrogates and transfer acquisition functions, by rankings.

Wistuba, Schilling and Schmidt-Thieme, 2016 (TST-R) and 2018 (TAF-R).
"""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch, log_expected_improvement

BANDWIDTH, TOP = 0.4, 0.75
"""The width was chosen on meta-validation tasks of FedHPO-B."""


def similarities(means: Array, scores: Array, bandwidth: float = BANDWIDTH) -> Array:
    """Return (m,) Epanechnikov weights of (m, n) predictions of n scores.

    The distance is the share of pairs of different scores that are predicted in another order.
    """
    below = scores[:, None] < scores
    wrong = ((means[:, :, None] >= means[:, None, :]) & below).sum(axis=(1, 2))
    distance = wrong / max(below.sum(), 1)
    return np.asarray(TOP * np.maximum(1.0 - (distance / bandwidth) ** 2, 0.0))


class TwoStageSearch(EnsembleSearch):
    """Expected improvement of a mean of all models, weighted by similarity.

    The deviation is that of its own model.
    """

    def transfer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        weights = np.append(similarities(self.means(own.points), own.scores), TOP)
        deviation = self.model(own).deviation(candidates)
        return self.improvement(weights / weights.sum(), own, candidates, deviation)


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
