"""Ranking-weighted Gaussian process ensembles (Feurer et al., 2018)."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer.base import Known

DRAWS, QUANTILE = 128, 0.95


def ranking_losses(predicted: Array, scores: Array, against: Array) -> Array:
    """Return (...,) pairs of n trials that (..., n) predictions rank wrongly, counted both ways.

    The prediction of one is compared with what `against` says of the other. Equal scores are left
    out.
    """
    below = scores[:, None] < scores
    less = (predicted[..., :, None] < against[..., None, :]).reshape(*predicted.shape[:-1], -1)
    # A pair is wrong where it is not below but should be, or is but should not: sums of products.
    should = (below.T.astype(np.float32) - below).ravel()
    return np.asarray(np.count_nonzero(below) + less.astype(np.float32) @ should)


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


class RankingEnsemble(process.EnsembleSearch):
    """Expected improvement of an ensemble, weighted by who ranks its trials best.

    Differs from the paper: draws are independent among trials, those of its own model around
    leave-one-out means; scores are normal quantiles of ranks in every task, and the settings of
    all models the same. While its own scores are equal, all sources weigh the same.
    """

    def transfer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        model = self.model(own)
        mean, deviation = self.means(own.points), self.deviations(own.points)
        noise = rng.standard_normal((len(mean) + 1, DRAWS, len(own.scores)))
        drawn = mean[:, None] + deviation[:, None] * noise[:-1]
        around, spread = model.leave_one_out()
        losses = [
            *(ranking_losses(one, own.scores, one) for one in drawn),
            ranking_losses(around + spread * noise[-1], own.scores, model.targets),
        ]
        even = np.append(np.full(len(mean), 1.0 / len(mean)), 0.0)  # equal scores rank nothing
        weights = weights_of(np.array(losses)) if np.ptp(own.scores) else even
        used = np.flatnonzero(weights[:-1])
        parts = [self.deviations(candidates, used), model.deviation(candidates)[None]]
        spread = np.sqrt(weights[[*used, -1]] ** 2 @ np.concatenate(parts) ** 2)
        return self.improvement(weights, own, candidates, spread)
