"""Two-stage transfer surrogates by rankings (Wistuba, Schilling, Schmidt-Thieme, 2016)."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch, log_expected_improvement

BANDWIDTH: Final = 0.5
TOP: Final = 0.75


def similarities(means: Array, scores: Array, bandwidth: float = BANDWIDTH) -> Array:
    """Return (m,) Epanechnikov weights of (m, n) predictions of n scores.

    The distance is the share of pairs of different scores that are predicted in another order.
    """
    below = scores[:, None] < scores
    wrong = ((means[:, :, None] >= means[:, None, :]) & below).sum(axis=(1, 2))
    distance = wrong / max(below.sum(), 1)
    return np.asarray(TOP * np.maximum(1.0 - (distance / bandwidth) ** 2, 0.0))


class TwoStageSearch(EnsembleSearch):
    """TST-R: the mean is of all models by similarity, the deviation that of its own."""

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        model = self.model(own)
        known = self.predicted(own.points)[0]
        weights = np.append(similarities(known, own.scores), TOP)
        weights /= weights.sum()
        mean, deviation = model.predict(candidates)
        mixed = weights @ np.vstack([self.predicted(candidates)[0], mean])
        best = (weights @ np.vstack([known, model.predict(own.points)[0]])).max()
        return log_expected_improvement(mixed, deviation, float(best))
