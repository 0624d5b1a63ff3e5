"""Bootstrap bands of curves and intervals of numbers, from named random streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Matrix, Numbers, Vector
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream
from fedhpo_gym.typed import checked_types

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve and how sure it is.

    Attributes:
        mean: (T,).
        lower: (T,) lower end of the pointwise band: at each time by itself, `level` of bootstraps.
        upper: (T,) its upper end.
        all_lower: (T,) lower end of the simultaneous band: `level` of bootstraps stay inside it at
            all times together.
        all_upper: (T,) its upper end.
    """

    mean: Numbers
    lower: Numbers
    upper: Numbers
    all_lower: Numbers
    all_upper: Numbers


@checked_types
def bootstrap_band(
    curves: Matrix | Sequence[Matrix],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Band:
    """Return the mean of some curves with bands, by drawing whole curves again with replacement.

    Pointwise: percentiles of the bootstrap means m*(t) (Efron and Tibshirani, 1993, section 13.3).
    Simultaneous: m(t) -+ c s(t), where s is the standard deviation of m*(t), and c the `level`
    quantile of max_t |m*(t) - m(t)| / s(t) (sup-t band: Montiel Olea and Plagborg-Moller, 2019,
    algorithm 2). With five runs both are too narrow: a bootstrap cannot invent runs.

    Args:
        curves: (S, T) finite values; or several such, a sample of runs per problem, whose means are
            averaged. Runs are then drawn again within each sample.
        seed: of the draws.
        level: share of bootstraps inside, in (0, 1).
        resamples: number of bootstraps.

    Raises:
        InvalidArgumentError: an argument is out of its range, or a value is not finite.
    """
    _check(level, resamples)
    samples = [curves] if isinstance(curves, np.ndarray) else list(curves)
    if not samples or any(not _is_finite_matrix(sample) for sample in samples):
        raise InvalidArgumentError("`curves` must be a matrix of finite values, a row per run")
    mean = np.mean([sample.mean(axis=0) for sample in samples], axis=0)
    rng = stream(seed, "bootstrap_band")
    means = np.zeros((resamples, len(mean)))
    for sample in samples:
        # How often each run is drawn: one product instead of a copy of all curves per bootstrap.
        runs = len(sample)
        counts = rng.multinomial(runs, np.full(runs, 1 / runs), resamples)
        means += counts @ sample / (runs * len(samples))
    tail = (1 - level) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail], axis=0)
    deviation = means.std(axis=0)
    # What has no spread but in its last bits has none.
    moves = deviation > 1e-12 * np.maximum(1e-300, np.abs(mean))
    scaled = np.abs(means - mean)[:, moves] / deviation[moves]
    reach = float(np.quantile(scaled.max(axis=1), level)) if moves.any() else 0.0
    half = np.where(moves, reach * deviation, 0.0)
    return Band(mean, lower, upper, mean - half, mean + half)


@checked_types
def improvement_interval(
    x: Sequence[Vector],
    y: Sequence[Vector],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the stratified bootstrap interval of the probability of improvement.

    As `bootstrap_interval` of `probability_of_improvement`, with one product per problem.

    Args:
        x: runs on each problem, (S,) each; lower is better.
        y: runs of another agent on the same problems.
        seed: of the draws.
        level: share of bootstraps inside, in (0, 1).
        resamples: number of bootstraps.

    Raises:
        InvalidArgumentError: an argument is out of its range.
    """
    _check(level, resamples)
    rng, found = stream(seed, "improvement_interval"), np.zeros(resamples)
    if not x or len(x) != len(y):
        raise InvalidArgumentError(
            f"`x` and `y` must hold the same problems, at least one, got {len(x)} and {len(y)}"
        )
    for a, b in zip(x, y, strict=True):
        wins = (a[:, None] < b) + (a[:, None] == b) / 2
        drawn = [rng.multinomial(n, np.full(n, 1 / n), resamples) for n in wins.shape]
        found += np.einsum("ri,ij,rj->r", *(drawn[0], wins, drawn[1])) / (wins.size * len(x))
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


@checked_types
def bootstrap_interval(
    statistic: Callable[[Sequence[Numbers]], float],
    samples: Sequence[Vector],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic, drawing runs again within each sample.

    The stratified bootstrap of Agarwal et al. (2021, section 4.2): a sample holds the runs of one
    agent on one problem, and problems are not drawn again.

    Args:
        statistic: takes samples like these.
        samples: (S,) each; they may differ in length.
        seed: of the draws.
        level: share of bootstraps inside, in (0, 1).
        resamples: number of bootstraps.

    Raises:
        InvalidArgumentError: an argument is out of its range.
    """
    _check(level, resamples)
    rng = stream(seed, "bootstrap_interval")
    found = [
        statistic([sample[rng.integers(len(sample), size=len(sample))] for sample in samples])
        for _ in range(resamples)
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def _is_finite_matrix(sample: Numbers) -> bool:
    return sample.ndim == 2 and len(sample) > 0 and bool(np.isfinite(sample).all())


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise InvalidArgumentError(f"`level` must lie in (0, 1), got {level!r}")
    if resamples < 1:
        raise InvalidArgumentError(f"`resamples` must be at least 1, got {resamples!r}")
