"""Two-stage transfer surrogates by rankings (Wistuba, Schilling, Schmidt-Thieme, 2016)."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch

BANDWIDTH, TOP = 0.5, 0.75


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

    Differs from the paper: the deviation is the mixture's, as in an ensemble of independent models,
    and not that of its own model, which would explore what the sources know.
    """

    def transfer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        similar = similarities(self.means(own.points), own.scores)
        return self.mixed(np.append(similar, TOP) / (similar.sum() + TOP), own, candidates)
