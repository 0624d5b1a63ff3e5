"""Optimizers that weight Gaussian processes of source tasks, or search where these were good.

All derive from `EnsembleSearch` and implement `transfer`, which returns a preference for each of
(c, F) candidates. RGPE and TST-R average the models of all tasks, TAF-R averages improvements, the
zero-shot portfolio ignores its own scores, and the bounding box only restricts candidates.
"""

from functools import cached_property

import numpy as np

from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.gaussian_process import (
    EnsembleSearch,
    GaussianProcessSearch,
    log_expected_improvement,
)
from fedhpo_gym.core.arrays import Floats

DRAWS, QUANTILE = 128, 0.95


def ranking_losses(predicted: Floats, scores: Floats, against: Floats) -> Floats:
    """Return (...,) pairs of n trials that (..., n) predictions rank wrongly, counted both ways.

    The prediction of one is compared with what `against` says of the other. Equal scores are left
    out.
    """
    below = scores[:, None] < scores
    less = (predicted[..., :, None] < against[..., None, :]).reshape(*predicted.shape[:-1], -1)
    # A pair is wrong where it is not below but should be, or is but should not: sums of products.
    should = (below.T.astype(np.float32) - below).ravel()
    return np.asarray(np.count_nonzero(below) + less.astype(np.float32) @ should)


def ranking_weights(losses: Floats) -> Floats:
    """Return (m,) how often each of m models has the least of (m, S) losses, the last its own.

    Where models tie, the draw is shared, but its own takes all that it ties for. A source whose
    median is above the `QUANTILE` of its own has no weight.
    """
    is_kept = np.median(losses, axis=1) <= np.quantile(losses[-1], QUANTILE)
    is_kept[-1] = True
    eligible_losses = np.where(is_kept[:, None], losses, np.inf)
    is_least = eligible_losses == eligible_losses.min(axis=0)
    is_least[:-1, is_least[-1]] = False
    return np.asarray((is_least / is_least.sum(axis=0)).mean(axis=1))


class RankingEnsemble(EnsembleSearch):
    """Expected improvement of an ensemble, weighted by who ranks its trials best.

    Ranking-weighted Gaussian process ensembles (RGPE; Feurer et al., 2018). Differs from the paper:
    draws are independent among trials, those of its own model around leave-one-out means; scores
    are normal quantiles of ranks in every task, and the settings of all models the same. While its
    own scores are equal, all sources weigh the same.
    """

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        model = self.model(trials)
        mean, deviation = self.means(trials.points), self.deviations(trials.points)
        noise = rng.standard_normal((len(mean) + 1, DRAWS, len(trials.scores)))
        draws = mean[:, None] + deviation[:, None] * noise[:-1]
        loo_mean, spread = model.leave_one_out()
        losses = [
            *(ranking_losses(draw, trials.scores, draw) for draw in draws),
            ranking_losses(loo_mean + spread * noise[-1], trials.scores, model.targets),
        ]
        equal_weights = np.append(
            np.full(len(mean), 1.0 / len(mean)), 0.0
        )  # equal scores rank nothing
        weights = ranking_weights(np.array(losses)) if np.ptp(trials.scores) else equal_weights
        sources = np.flatnonzero(weights[:-1])
        deviations = [self.deviations(candidates, sources), model.deviation(candidates)[None]]
        spread = np.sqrt(weights[[*sources, -1]] ** 2 @ np.concatenate(deviations) ** 2)
        return self.improvement(weights, trials, candidates, spread)


BANDWIDTH, TOP = 0.4, 0.75
"""The width was chosen on meta-validation tasks of FedHPO-B."""


def similarities(means: Floats, scores: Floats, bandwidth: float = BANDWIDTH) -> Floats:
    """Return (m,) Epanechnikov weights of (m, n) predictions of n scores.

    The distance is the share of pairs of different scores that are predicted in another order.
    """
    below = scores[:, None] < scores
    wrong = ((means[:, :, None] >= means[:, None, :]) & below).sum(axis=(1, 2))
    distance = wrong / max(below.sum(), 1)
    return np.asarray(TOP * np.maximum(1.0 - (distance / bandwidth) ** 2, 0.0))


class TwoStageSearch(EnsembleSearch):
    """Expected improvement of a mean of all models, weighted by similarity.

    The two-stage surrogate TST-R (Wistuba, Schilling and Schmidt-Thieme, 2016). The deviation is
    that of its own model.
    """

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        weights = np.append(similarities(self.means(trials.points), trials.scores), TOP)
        deviation = self.model(trials).deviation(candidates)
        return self.improvement(weights / weights.sum(), trials, candidates, deviation)


class TransferAcquisition(EnsembleSearch):
    """Its own expected improvement, and how much sources would improve, by similarity.

    The transfer acquisition function TAF-R (Wistuba, Schilling and Schmidt-Thieme, 2018).
    """

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        means = self.means(trials.points)
        weights = similarities(means, trials.scores)
        sources = np.flatnonzero(weights)
        best = means[sources].max(axis=1, keepdims=True)
        gains = np.maximum(self.means(candidates, sources) - best, 0.0)
        model = self.model(trials)
        gain = np.exp(log_expected_improvement(*model.predict(candidates), model.best))
        return np.asarray((TOP * gain + weights[sources] @ gains) / (TOP + weights.sum()))


def portfolio_gains(table: Floats, covered: Floats) -> Floats:
    """Return (c,) how much a candidate adds to the best of every task, summed over tasks.

    `table` has (tasks, c) scores, `covered` the (tasks,) best of what is in the portfolio already.
    """
    return np.asarray(np.maximum(table - covered[:, None], 0.0).sum(axis=0))


class ZeroShotSearch(EnsembleSearch):
    """The next of a portfolio that is grown greedily for source tasks; its own scores are unused.

    A greedy portfolio (Wistuba, Schilling and Schmidt-Thieme, 2015). What a configuration scores in
    a task, the task's model says. Where nothing is better than the portfolio in any task, the best
    on average is next.
    """

    eager = True

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        table = self.means(candidates)
        covered = self.means(trials.points) if len(trials.points) else table.min(1, keepdims=True)
        gains = portfolio_gains(table, covered.max(axis=1))
        return np.asarray(gains + 1e-6 * table.mean(axis=0))


class BoundingBoxSearch(GaussianProcessSearch):
    """Expected improvement in the smallest box that has the best of every source task.

    The space is learned (Perrone et al., 2019). Its first `initial` trials are draws from the box.
    Candidates outside of it are preferred to none inside, by how near they are.
    """

    transfers = True
    eager = True

    @cached_property
    def box(self) -> tuple[Floats, Floats]:
        """(F,) lowest and highest features of the best of every source task."""
        best = np.array([source.points[source.scores.argmax()] for source in self.sources])
        return best.min(axis=0), best.max(axis=0)

    def prefer(self, trials: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        value = rng.random(len(candidates))
        if len(trials.scores) >= self.initial:
            value = super().prefer(trials, candidates, rng)
        if not self.sources:
            return value
        low, high = self.box
        distance = np.maximum(low - candidates, candidates - high).clip(min=0.0).sum(axis=1)
        return np.where(distance > 1e-6, value.min() - 1.0 - distance, value)
