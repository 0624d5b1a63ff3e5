"""Ranking-weighted Gaussian process ensembles (Feurer et al., 2018)."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch, normal_scores

DRAWS: Final = 256
QUANTILE: Final = 0.95


def ranking_losses(predicted: Array, scores: Array) -> Array:
    """Return (...,) ordered pairs of n trials that (..., n) predictions put the other way round."""
    below = scores[:, None] < scores
    return np.asarray(((predicted[..., :, None] >= predicted[..., None, :]) & below).sum((-2, -1)))


def own_losses(drawn: Array, scores: Array) -> Array:
    """Return (S,) misranked pairs where each prediction is compared with the others' scores."""
    below = scores[:, None] < scores
    return np.asarray(((drawn[..., :, None] >= scores) & below).sum((-2, -1)))


def weights_of(losses: Array) -> Array:
    """Return (m,) how often each of m models has the least of (m, S) losses, the last its own.

    Where models tie, the draw is shared, but its own takes all that it ties for. A source whose
    median is above the `QUANTILE` of its own has no weight.
    """
    kept = np.median(losses, axis=1) <= np.quantile(losses[-1], QUANTILE)
    kept[-1] = True
    considered = np.where(kept[:, None], losses, np.inf)
    least = considered == considered.min(axis=0)
    least[:-1, least[-1]] = False
    return np.asarray((least / least.sum(axis=0)).mean(axis=1))


class RankingEnsemble(EnsembleSearch):
    """RGPE.

    Differs from the paper: draws are independent among trials, those of its own model around
    leave-one-out means; scores are normal quantiles of ranks, in every task.
    """

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        model = self.model(own)
        mean, deviation = self.predicted(own.points)
        noise = rng.standard_normal((len(mean) + 1, DRAWS, len(own.scores)))
        drawn = mean[:, None] + deviation[:, None] * noise[:-1]
        around, spread = model.leave_one_out()
        losses = np.vstack(
            [
                ranking_losses(drawn, own.scores),
                own_losses(around + spread * noise[-1], normal_scores(own.scores)),
            ]
        )
        return self.mixed(weights_of(losses), own, candidates)
