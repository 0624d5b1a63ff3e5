"""Ranks, regret, and numbers and bands that sum many runs up (Agarwal et al., 2021; `rliable`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Axes, Range, checked_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

Numbers = NDArray[np.float64]
Flat = Annotated[Numbers, Axes()]
"""Of any shape, without NaN, and not empty, as the ones below."""
Rows = Annotated[Numbers, Axes(1)]
Vector = Annotated[Numbers, Axes(1, 1)]
Matrix = Annotated[Numbers, Axes(2, 2)]


@checked_types
def ranks(values: Rows) -> Numbers:
    """Rank (..., A) values along the last axis, 1 the lowest; equal ones share the mean rank."""
    below = np.zeros(values.shape)
    equal = np.zeros(values.shape)
    for other in range(values.shape[-1]):  # few agents, many times: no (A, A) array per time
        column = values[..., other : other + 1]
        below += column < values
        equal += column == values
    return 1.0 + below + (equal - 1.0) / 2.0


@checked_types
def mean_ranks(values: Matrix) -> Numbers:
    """Return mean ranks over blocks: (B, A) -> (A,)."""
    result: Numbers = ranks(values).mean(axis=0)
    return result


@checked_types
def interquartile_mean(values: Flat) -> float:
    """Return the mean without the lowest and highest floor(n / 4) (Agarwal et al., 2021, 4.3)."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


@checked_types
def ecdf(values: Flat, at: Numbers) -> Numbers:
    """Return the share of values that are at most each of (T,) thresholds: (T,).

    Of one agent's normalised results, it is the performance profile of Agarwal et al. (2021).
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    return np.searchsorted(ordered, at, side="right") / len(ordered)


@checked_types
def data_profile(curves: Matrix, tolerance: Annotated[float, Range(0, 1)]) -> Numbers:
    """Return the share of (R, T) regret curves that were at most `tolerance` by each time: (T,).

    These are the data profiles of More and Wild (2009); what was solved once stays solved.
    """
    result: Numbers = np.maximum.accumulate(curves <= tolerance, axis=1).mean(axis=0)
    return result


@checked_types
def probability_of_improvement(x: Sequence[Vector], y: Sequence[Vector]) -> float:
    """Return how likely a run of x, (S,) per problem, is better than one of y on a random problem.

    It is the Mann-Whitney statistic, averaged over problems (Agarwal et al., 2021, section 4.3).
    """
    _check_problems(x, y)
    shares = [np.mean((a[:, None] < b) + (a[:, None] == b) / 2) for a, b in zip(x, y, strict=True)]
    return float(np.mean(shares))


def _check_problems(x: Sequence[Numbers], y: Sequence[Numbers]) -> None:
    if not x or len(x) != len(y):
        raise InvalidArgumentError(
            f"`x` and `y` must hold the same problems, at least one, got {len(x)} and {len(y)}"
        )


RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve and its bands, all (T,).

    Pointwise, `level` of bootstraps are inside at each time by itself; simultaneously (`all_lower`,
    `all_upper`), at all times together.
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
    level: Annotated[float, Range(0, 1, "()")] = 0.95,
    resamples: Annotated[int, Range(1)] = RESAMPLES,
) -> Band:
    """Return the mean of (S, T) curves with bands, by drawing whole curves again with replacement.

    Pointwise: percentiles of the bootstrap means m*(t) (Efron and Tibshirani, 1993, section 13.3).
    Simultaneous: m(t) -+ c s(t), where s is the standard deviation of m*(t), and c the `level`
    quantile of max_t |m*(t) - m(t)| / s(t) (sup-t band: Montiel Olea and Plagborg-Moller, 2019,
    algorithm 2). Of several samples, a problem each, runs are drawn again within each sample.
    """
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
def improvement_interval(x: Sequence[Vector], y: Sequence[Vector]) -> tuple[float, float]:
    """Return the stratified 95 % bootstrap interval of the probability of improvement."""
    rng, found = stream(0, "improvement_interval"), np.zeros(RESAMPLES)
    _check_problems(x, y)
    for a, b in zip(x, y, strict=True):
        wins = (a[:, None] < b) + (a[:, None] == b) / 2
        drawn = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in wins.shape]
        found += np.einsum("ri,ij,rj->r", *(drawn[0], wins, drawn[1])) / (wins.size * len(x))
    return _middle(found)


@checked_types
def bootstrap_interval(
    statistic: Callable[[Sequence[Numbers]], float], samples: Sequence[Vector]
) -> tuple[float, float]:
    """Return the 95 % interval of a statistic, drawing runs again within each (S,) sample.

    The stratified bootstrap of Agarwal et al. (2021, section 4.2): a sample holds the runs of one
    agent on one problem, and problems are not drawn again.
    """
    rng = stream(0, "bootstrap_interval")
    found = [
        statistic([sample[rng.integers(len(sample), size=len(sample))] for sample in samples])
        for _ in range(RESAMPLES)
    ]
    return _middle(found)


def _middle(found: Numbers | list[float]) -> tuple[float, float]:
    """Return between what lies the middle 95 % of bootstraps."""
    tail = (1 - 0.95) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def _is_finite_matrix(sample: Numbers) -> bool:
    return sample.ndim == 2 and len(sample) > 0 and bool(np.isfinite(sample).all())


@checked_types
def normalised_regret(values: Numbers, best: float, worst: float) -> Numbers:
    """Return (f - f_best) / (f_worst - f_best), cut off at 0 and 1; 0 where both are equal.

    Wang et al. (2022, figure 3) take the worst of all evaluated configurations; where courses
    diverge, it is so large that all others look alike.
    """
    if not (np.isfinite(best) and np.isfinite(worst) and best <= worst):
        raise InvalidArgumentError(
            f"`best` must be finite and at most `worst`, got {best!r} and {worst!r}"
        )
    above = values - best
    if best == worst:
        return np.where(above > 0, 1.0, 0.0)
    result: Numbers = np.clip(above / (worst - best), 0.0, 1.0)
    return result


@checked_types
def area(values: Rows, at: Vector) -> Numbers:
    """Return the mean height of (..., T) step functions over (T,) rising points."""
    widths = np.diff(at)
    if len(at) < 2 or np.any(widths <= 0):
        raise InvalidArgumentError("`at` must hold at least two points, each above the last")
    if values.shape[-1] != len(at):
        raise InvalidArgumentError(
            f"`values` must have a value per point of `at`, got {values.shape[-1]} and {len(at)}"
        )
    result: Numbers = np.sum(values[..., :-1] * widths, axis=-1) / (at[-1] - at[0])
    return result


@checked_types
def overtuning(test: Vector) -> float:
    """Return how much worse the final incumbent is on test data than the best one before it.

    It is test(lambda*_T) - min_t test(lambda*_t) (Schneider, Bischl and Feurer, 2025).
    """
    return float(test[-1] - test.min())


@checked_types
def relative_overtuning(test: Vector) -> float:
    """Return overtuning over what tuning could have gained: 1 or more means all gain was lost.

    It is infinite where no incumbent was better than the first, yet the last is worse.
    """
    lost, gained = overtuning(test), float(test[0] - test.min())
    if lost == 0:
        return 0.0
    return lost / gained if gained > 0 else float("inf")
