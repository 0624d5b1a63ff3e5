"""What comparisons of agents rest on: pure functions of arrays, with numpy alone.

Lower values are better throughout. Names of axes: P problems, A agents, S seeds, T times, B blocks
(problems, or runs that share problem and seed). Summaries of many runs are those of Agarwal et al.
(2021) and `rliable`; tests of hypotheses assume no distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb, erfc, exp, lgamma, log, sqrt
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Axes, Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

Flat = Annotated[Floats, Axes()]
"""Of any shape, without NaN, and not empty, as the ones below."""
Rows = Annotated[Floats, Axes(1)]
Vector = Annotated[Floats, Axes(1, 1)]
Matrix = Annotated[Floats, Axes(2, 2)]


@validate_call
def ranks(values: Rows) -> Floats:
    """Rank (..., A) values along the last axis, 1 the lowest; equal ones share the mean rank."""
    below = np.zeros(values.shape)
    equal = np.zeros(values.shape)
    for other in range(values.shape[-1]):  # few agents, many times: no (A, A) array per time
        column = values[..., other : other + 1]
        below += column < values
        equal += column == values
    return 1.0 + below + (equal - 1.0) / 2.0


@validate_call
def mean_ranks(values: Matrix) -> Floats:
    """Return mean ranks over blocks: (B, A) -> (A,)."""
    return np.asarray(ranks(values).mean(axis=0))


@validate_call
def interquartile_mean(values: Flat) -> float:
    """Return the mean without the lowest and highest floor(n / 4) (Agarwal et al., 2021, 4.3)."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


@validate_call
def ecdf(values: Flat, at: Floats) -> Floats:
    """Return the share of values that are at most each of (T,) thresholds: (T,).

    Of one agent's normalised results, it is the performance profile of Agarwal et al. (2021).
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    return np.searchsorted(ordered, at, side="right") / len(ordered)


@validate_call
def data_profile(curves: Matrix, tolerance: Annotated[float, Range(0, 1)]) -> Floats:
    """Return the share of (R, T) regret curves that were at most `tolerance` by each time: (T,).

    These are the data profiles of More and Wild (2009); what was solved once stays solved.
    """
    return np.asarray(np.maximum.accumulate(curves <= tolerance, axis=1).mean(axis=0))


@validate_call
def probability_of_improvement(x: Sequence[Vector], y: Sequence[Vector]) -> float:
    """Return how likely a run of x, (S,) per problem, is better than one of y on a random problem.

    It is the Mann-Whitney statistic, averaged over problems (Agarwal et al., 2021, section 4.3).
    """
    _check_problems(x, y)
    shares = [np.mean((a[:, None] < b) + (a[:, None] == b) / 2) for a, b in zip(x, y, strict=True)]
    return float(np.mean(shares))


def _check_problems(x: Sequence[Floats], y: Sequence[Floats]) -> None:
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

    mean: Floats
    lower: Floats
    upper: Floats
    all_lower: Floats
    all_upper: Floats


@validate_call
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
    if not samples or not all(np.isfinite(sample).all() for sample in samples):
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


@validate_call
def improvement_interval(x: Sequence[Vector], y: Sequence[Vector]) -> tuple[float, float]:
    """Return the stratified 95 % bootstrap interval of the probability of improvement."""
    rng, found = stream(0, "improvement_interval"), np.zeros(RESAMPLES)
    _check_problems(x, y)
    for a, b in zip(x, y, strict=True):
        wins = (a[:, None] < b) + (a[:, None] == b) / 2
        drawn = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in wins.shape]
        found += np.einsum("ri,ij,rj->r", *(drawn[0], wins, drawn[1])) / (wins.size * len(x))
    return _middle(found)


@validate_call
def bootstrap_interval(
    statistic: Callable[[Sequence[Floats]], float], samples: Sequence[Vector]
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


def _middle(found: Floats | list[float]) -> tuple[float, float]:
    """Return between what lies the middle 95 % of bootstraps."""
    tail = (1 - 0.95) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


@validate_call
def normalised_regret(values: Floats, best: float, worst: float) -> Floats:
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
    return np.clip(above / (worst - best), 0.0, 1.0)


@validate_call
def area(values: Rows, at: Vector) -> Floats:
    """Return the mean height of (..., T) step functions over (T,) rising points."""
    widths = np.diff(at)
    if len(at) < 2 or np.any(widths <= 0):
        raise InvalidArgumentError("`at` must hold at least two points, each above the last")
    if values.shape[-1] != len(at):
        raise InvalidArgumentError(
            f"`values` must have a value per point of `at`, got {values.shape[-1]} and {len(at)}"
        )
    return np.asarray(np.sum(values[..., :-1] * widths, axis=-1) / (at[-1] - at[0]))


@validate_call
def overtuning(test: Vector) -> float:
    """Return how much worse the final incumbent is on test data than the best one before it.

    It is test(lambda*_T) - min_t test(lambda*_t) (Schneider, Bischl and Feurer, 2025).
    """
    return float(test[-1] - test.min())


@validate_call
def relative_overtuning(test: Vector) -> float:
    """Return overtuning over what tuning could have gained: 1 or more means all gain was lost.

    It is infinite where no incumbent was better than the first, yet the last is worse.
    """
    lost, gained = overtuning(test), float(test[0] - test.min())
    if lost == 0:
        return 0.0
    return lost / gained if gained > 0 else float("inf")


_NODES = 200
_REACH = 9.0
"""Standard deviations beyond which a normal density adds less than 1e-17."""


def normal_tail(z: float) -> float:
    """Return P(Z > z) of the standard normal distribution."""
    return 0.5 * erfc(z / sqrt(2.0))


@validate_call
def chi2_tail(x: float, freedom: Annotated[int, Range(1)]) -> float:
    """Return P(X > x) of chi-squared (Abramowitz and Stegun, 1964, 26.4.4 and 26.4.5)."""
    if x <= 0:
        return 1.0
    half, odd = x / 2.0, freedom % 2
    start = erfc(sqrt(half)) if odd else 0.0
    powers = np.arange(freedom // 2) + odd / 2.0
    return min(1.0, start + sum(exp(p * log(half) - half - lgamma(p + 1.0)) for p in powers))


def binomial_tail(wins: int, trials: int) -> float:
    """Return P(X >= wins) of fair coins thrown some times."""
    return float(sum(comb(trials, k) for k in range(wins, trials + 1)) / 2**trials)


@validate_call
def range_tail(q: float, groups: Annotated[int, Range(2)]) -> float:
    """Return P(Q > q) of the studentised range of some groups with infinite degrees of freedom.

    P(Q <= q) = k integral phi(z) [Phi(z) - Phi(z - q)]^(k-1) dz (Tukey, 1953).
    """
    if q <= 0:
        return 1.0
    z, weights, tails = _quadrature()
    below = np.array([normal_tail(value - q) for value in z.tolist()]) - tails
    return float(np.clip(1.0 - groups * np.sum(weights * below ** (groups - 1)), 0.0, 1.0))


@cache
def _quadrature() -> tuple[Floats, Floats, Floats]:
    """Return points z, weights for integrals over phi(z) dz, and P(Z > z)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z = _REACH * nodes
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z, _REACH * weights * density, np.array([normal_tail(value) for value in z.tolist()])


EXACT: Final = 50
"""Differences up to which the Wilcoxon test counts all signs; beyond, a normal approximation."""

PValues = Annotated[Sequence[float] | Floats, Axes(1, 1, empty=True)]


@dataclass(frozen=True)
class Friedman:
    """Friedman's chi-squared, corrected for ties, its p-value, and the (A,) mean ranks."""

    statistic: float
    p_value: float
    mean_ranks: Floats


@dataclass(frozen=True)
class WinTieLoss:
    """In how many blocks the first is lower, equal and higher, and the one-sided sign test's p."""

    wins: int
    ties: int
    losses: int
    p_value: float

    def __str__(self) -> str:
        return f"{self.wins}/{self.ties}/{self.losses}"


@validate_call
def friedman(values: Matrix) -> Friedman:
    """Test whether some agents' ranks differ over blocks, of (B, A) values (Friedman, 1937).

    chi2 = (A - 1) sum_a (R_a - B (A + 1) / 2)^2 / (sum of squared ranks - B A (A + 1)^2 / 4), where
    R_a is the sum of the ranks of agent a: Conover (1999, eq. 5.8.7), which ties do not distort.
    """
    _check_matrix(values)
    blocks, agents = values.shape
    ranked = ranks(values)
    spread = float(np.sum(ranked**2)) - blocks * agents * (agents + 1) ** 2 / 4
    between = float(np.sum((ranked.sum(axis=0) - blocks * (agents + 1) / 2) ** 2))
    statistic = (agents - 1) * between / spread if spread > 0 else 0.0
    return Friedman(statistic, chi2_tail(statistic, agents - 1), ranked.mean(axis=0))


@validate_call
def nemenyi(values: Matrix) -> Floats:
    """Return p-values of all pairs by Nemenyi's test: (B, A) -> (A, A), 1 on the diagonal."""
    _check_matrix(values)
    blocks, agents = values.shape
    found, scale = mean_ranks(values), sqrt(agents * (agents + 1) / (12 * blocks))
    result = np.ones((agents, agents))
    for a, b in combinations(range(agents), 2):
        result[a, b] = result[b, a] = range_tail(abs(found[a] - found[b]) / scale, agents)
    return result


@validate_call
def wilcoxon(x: Vector, y: Vector) -> float:
    """Return the two-sided p-value of Wilcoxon's test of paired (B,) values (Wilcoxon, 1945).

    Differences of zero are ranked and then left out (Pratt, 1959). Up to `EXACT` differences, all
    signs of the ranks at hand are counted, ties included; beyond, the rank sum is taken as normal.
    """
    _check_pairs(x, y)
    with np.errstate(invalid="ignore"):
        difference = np.where(x == y, 0.0, np.asarray(x) - np.asarray(y))
    ranked = ranks(np.abs(difference))[difference != 0]
    if not len(ranked):
        return 1.0
    plus = float(ranked[difference[difference != 0] > 0].sum())
    total = float(ranked.sum())
    return min(1.0, 2.0 * min(_sum_at_most(ranked, plus), _sum_at_most(ranked, total - plus)))


@validate_call
def rank_sum(x: Vector, y: Vector) -> float:
    """Return the two-sided p-value of the rank-sum test of unpaired (N,) and (M,) values.

    It is the share of all ways of drawing x from both samples whose rank sum is as far from its
    mean, ties included; beyond `EXACT` values in all, the rank sum is taken as normal.
    """
    ranked = ranks(np.concatenate([x, y]))
    first, count = len(x), len(ranked)
    middle = first * (count + 1) / 2
    distance = abs(float(ranked[:first].sum()) - middle)
    if count > EXACT:
        spread = float(np.sum((ranked - (count + 1) / 2) ** 2))
        deviation = sqrt(first * (count - first) / (count * (count - 1)) * spread)
        return min(1.0, 2.0 * normal_tail(distance / deviation)) if deviation else 1.0
    doubled: NDArray[np.int64] = np.rint(2 * ranked).astype(np.int64)
    ways = np.zeros((first + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in doubled.tolist():
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    is_as_far = np.abs(np.arange(ways.shape[1]) / 2 - middle) >= distance - 1e-9
    return float(min(1.0, ways[first, is_as_far].sum() / ways[first].sum()))


@validate_call
def holm(p_values: PValues) -> Floats:
    """Return (n,) p-values adjusted for being several (Holm, 1979)."""
    found = np.asarray(p_values, dtype=np.float64)
    if not ((found >= 0) & (found <= 1)).all():
        raise InvalidArgumentError(f"`p_values` must lie in [0, 1], got {found.tolist()}")
    order = np.argsort(found, kind="stable")
    adjusted = np.maximum.accumulate(found[order] * np.arange(len(found), 0, -1))
    result = np.empty(len(found))
    result[order] = np.minimum(1.0, adjusted)
    return result


@validate_call
def wilcoxon_holm(values: Matrix) -> Floats:
    """Return Holm-adjusted p-values of Wilcoxon's test of all pairs: (B, A) -> (A, A)."""
    _check_matrix(values)
    agents = values.shape[1]
    pairs = list(combinations(range(agents), 2))
    adjusted = holm([wilcoxon(values[:, a], values[:, b]) for a, b in pairs])
    result = np.ones((agents, agents))
    for (a, b), p_value in zip(pairs, adjusted, strict=True):
        result[a, b] = result[b, a] = p_value
    return result


@validate_call
def sign_test(x: Vector, y: Vector) -> WinTieLoss:
    """Test whether x is lower than y more often than not: one-sided (Demsar, 2006, 3.1.3)."""
    _check_pairs(x, y)
    wins, losses = int(np.sum(x < y)), int(np.sum(x > y))
    return WinTieLoss(wins, len(x) - wins - losses, losses, binomial_tail(wins, wins + losses))


def _sum_at_most(ranked: Floats, bound: float) -> float:
    """Return P(sum of the ranks of random signs <= bound)."""
    if len(ranked) > EXACT:
        mean, deviation = ranked.sum() / 2, sqrt(float(np.sum(ranked**2)) / 4)
        return normal_tail((mean - bound) / deviation)
    doubled: NDArray[np.int64] = np.rint(2 * ranked).astype(np.int64)
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:  # each rank is in the sum or not, with equal probability
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[: len(ways) - rank]
        ways = (ways + shifted) / 2
    return float(min(1.0, ways[: round(2 * bound) + 1].sum()))


def _check_pairs(x: Floats, y: Floats) -> None:
    if len(x) != len(y):
        raise InvalidArgumentError(f"`x` and `y` must be equally long, got {len(x)} and {len(y)}")


def _check_matrix(values: Floats) -> None:
    if values.shape[1] < 2:
        raise InvalidArgumentError(
            f"`values` must have a row per block and at least two columns, got {values.shape}"
        )


@dataclass(frozen=True, eq=False)
class CriticalDifference:
    """Everything a critical-difference diagram shows (Demsar, 2006, figure 1).

    Attributes:
        agents: names, the best mean rank first.
        ranks: (A,) their mean ranks.
        p_values: (A, A) of pairs, adjusted for being several.
        groups: longest runs of neighbours (first, last) that cannot be told apart.
    """

    agents: tuple[str, ...]
    ranks: Floats
    blocks: int
    friedman: Friedman
    p_values: Floats
    groups: tuple[tuple[int, int], ...]
    alpha: float


@validate_call
def critical_difference(
    values: Matrix, agents: Sequence[str], alpha: float = 0.05
) -> CriticalDifference:
    """Compare all agents over blocks, of (B, A) values.

    A pair differs if Friedman's test rejects and Wilcoxon's with Holm's correction does (Benavoli
    et al., 2016).
    """
    if len(agents) != values.shape[1]:
        raise InvalidArgumentError(
            f"`agents` must name {values.shape[1]} columns, got {len(agents)} names"
        )
    found = friedman(values)
    order = np.argsort(found.mean_ranks, kind="stable")
    p_values = wilcoxon_holm(values)[np.ix_(order, order)]
    alike = (p_values >= alpha) | (found.p_value >= alpha)
    return CriticalDifference(
        agents=tuple(agents[place] for place in order),
        ranks=found.mean_ranks[order],
        blocks=len(values),
        friedman=found,
        p_values=p_values,
        groups=_groups(alike),
        alpha=alpha,
    )


def _groups(alike: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the longest runs of neighbours of which every pair is alike."""
    found: list[tuple[int, int]] = []
    count = len(alike)
    for first in range(count):
        last = first
        while last + 1 < count and alike[first : last + 2, first : last + 2].all():
            last += 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
