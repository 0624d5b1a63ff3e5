"""Statistics for comparing agents: summaries, bootstrap intervals and hypothesis tests.

The analyses call these pure functions of arrays, which need numpy alone. Lower values are better
throughout. Names of axes: P problems, A agents, S seeds, T times, B blocks (problems, or runs that
share problem and seed). Summaries of many runs are those of Agarwal et al. (2021) and `rliable`;
the tests are nonparametric.
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
"""An array of any shape, not empty and without NaN, as the following."""
Rows = Annotated[Floats, Axes(1)]
Vector = Annotated[Floats, Axes(1, 1)]
Matrix = Annotated[Floats, Axes(2, 2)]


@validate_call
def ranks(values: Rows) -> Floats:
    """Rank (..., A) values along the last axis, 1 for the lowest; ties have their mean rank."""
    below = np.zeros(values.shape)
    equal = np.zeros(values.shape)
    for other in range(values.shape[-1]):  # a loop over few agents avoids a (..., A, A) array
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

    For one agent's normalised results, it is the performance profile of Agarwal et al. (2021).
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    return np.searchsorted(ordered, at, side="right") / len(ordered)


@validate_call
def data_profile(curves: Matrix, tolerance: Annotated[float, Range(0, 1)]) -> Floats:
    """Return the share of (R, T) regret curves that reached `tolerance` by each time: (T,).

    These are the data profiles of More and Wild (2009); a solved run counts as solved from then on.
    """
    return np.asarray(np.maximum.accumulate(curves <= tolerance, axis=1).mean(axis=0))


@validate_call
def probability_of_improvement(x: Sequence[Vector], y: Sequence[Vector]) -> float:
    """Return the probability that a run of x beats one of y on a random problem, (S,) runs each.

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
    """A mean curve and its confidence bands, all (T,).

    The pointwise band contains `level` of bootstraps at each single time; the simultaneous band
    (`all_lower`, `all_upper`) contains `level` of whole bootstrap curves.
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
    """Return the mean of (S, T) curves with bands, by a bootstrap of whole curves.

    Pointwise: percentiles of the bootstrap means m*(t) (Efron and Tibshirani, 1993, section 13.3).
    Simultaneous: m(t) -+ c s(t), where s is the standard deviation of m*(t), and c the `level`
    quantile of max_t |m*(t) - m(t)| / s(t) (sup-t band: Montiel Olea and Plagborg-Moller, 2019,
    algorithm 2). If there are several samples, one per problem, runs are resampled within each.
    """
    samples = [curves] if isinstance(curves, np.ndarray) else list(curves)
    if not samples or not all(np.isfinite(sample).all() for sample in samples):
        raise InvalidArgumentError("`curves` must be a matrix of finite values, a row per run")
    mean = np.mean([sample.mean(axis=0) for sample in samples], axis=0)
    rng = stream(seed, "bootstrap_band")
    means = np.zeros((resamples, len(mean)))
    for sample in samples:
        # Counts of each run allow one matrix product instead of a copy of all curves.
        runs = len(sample)
        counts = rng.multinomial(runs, np.full(runs, 1 / runs), resamples)
        means += counts @ sample / (runs * len(samples))
    tail = (1 - level) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail], axis=0)
    deviation = means.std(axis=0)
    # A spread of the size of rounding errors counts as none.
    moves = deviation > 1e-12 * np.maximum(1e-300, np.abs(mean))
    scaled = np.abs(means - mean)[:, moves] / deviation[moves]
    reach = float(np.quantile(scaled.max(axis=1), level)) if moves.any() else 0.0
    half = np.where(moves, reach * deviation, 0.0)
    return Band(mean, lower, upper, mean - half, mean + half)


@validate_call
def improvement_interval(x: Sequence[Vector], y: Sequence[Vector]) -> tuple[float, float]:
    """Return the stratified 95 % bootstrap interval of the probability of improvement."""
    rng, estimates = stream(0, "improvement_interval"), np.zeros(RESAMPLES)
    _check_problems(x, y)
    for a, b in zip(x, y, strict=True):
        wins = (a[:, None] < b) + (a[:, None] == b) / 2
        counts = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in wins.shape]
        estimates += np.einsum("ri,ij,rj->r", *(counts[0], wins, counts[1])) / (wins.size * len(x))
    return _central_interval(estimates)


@validate_call
def bootstrap_interval(
    statistic: Callable[[Sequence[Floats]], float], samples: Sequence[Vector]
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of several (S,) samples.

    The stratified bootstrap of Agarwal et al. (2021, section 4.2): a sample holds the runs of one
    agent on one problem. Runs are resampled within each sample, and problems are fixed.
    """
    rng = stream(0, "bootstrap_interval")
    estimates = [
        statistic([sample[rng.integers(len(sample), size=len(sample))] for sample in samples])
        for _ in range(RESAMPLES)
    ]
    return _central_interval(estimates)


def _central_interval(estimates: Floats | list[float]) -> tuple[float, float]:
    """Return the bounds of the central 95 % of bootstrap estimates."""
    tail = (1 - 0.95) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)


@validate_call
def normalised_regret(values: Floats, best: float, worst: float) -> Floats:
    """Return (f - f_best) / (f_worst - f_best), clipped to [0, 1]; 0 if best and worst are equal.

    Wang et al. (2022, figure 3) take the worst of all evaluated configurations. If training runs
    diverge, it is so large that all other configurations look alike.
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
    """Return the mean of (..., T) step functions over (T,) increasing points."""
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
    """Return how much worse the final incumbent is on test data than the best incumbent.

    It is test(lambda*_T) - min_t test(lambda*_t) (Schneider, Bischl and Feurer, 2025).
    """
    return float(test[-1] - test.min())


@validate_call
def relative_overtuning(test: Vector) -> float:
    """Return overtuning relative to the best gain of tuning: from 1 on, all gain was lost.

    It is infinite if no incumbent was better than the first, but the last is worse.
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
    """Return P(X >= wins) for the number X of heads in tosses of a fair coin."""
    return float(sum(comb(trials, k) for k in range(wins, trials + 1)) / 2**trials)


@validate_call
def range_tail(q: float, groups: Annotated[int, Range(2)]) -> float:
    """Return P(Q > q) of the studentised range of k groups with infinite degrees of freedom.

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


MAX_EXACT: Final = 50
"""Largest number of values for exact rank tests; more values use a normal approximation."""

PValues = Annotated[Sequence[float] | Floats, Axes(1, 1, empty=True)]


@dataclass(frozen=True)
class Friedman:
    """Friedman's chi-squared, corrected for ties, its p-value, and the (A,) mean ranks."""

    statistic: float
    p_value: float
    mean_ranks: Floats


@dataclass(frozen=True)
class WinTieLoss:
    """Numbers of blocks where x is lower than, equal to or above y, and the sign test's p-value."""

    wins: int
    ties: int
    losses: int
    p_value: float

    def __str__(self) -> str:
        return f"{self.wins}/{self.ties}/{self.losses}"


@validate_call
def friedman(values: Matrix) -> Friedman:
    """Test whether the ranks of agents differ, from (B, A) values (Friedman, 1937).

    chi2 = (A - 1) sum_a (R_a - B (A + 1) / 2)^2 / (sum of squared ranks - B A (A + 1)^2 / 4), where
    R_a is the sum of the ranks of agent a: Conover (1999, eq. 5.8.7), which corrects for ties.
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
    mean_rank, scale = mean_ranks(values), sqrt(agents * (agents + 1) / (12 * blocks))
    p_values = np.ones((agents, agents))
    for a, b in combinations(range(agents), 2):
        p_values[a, b] = p_values[b, a] = range_tail(
            abs(mean_rank[a] - mean_rank[b]) / scale, agents
        )
    return p_values


@validate_call
def wilcoxon(x: Vector, y: Vector) -> float:
    """Return the two-sided p-value of Wilcoxon's test of paired (B,) values (Wilcoxon, 1945).

    Differences of zero are ranked and then dropped (Pratt, 1959). Up to `MAX_EXACT` differences,
    all signs of the ranks are enumerated, ties included; beyond, the rank sum is taken as normal.
    """
    _check_pairs(x, y)
    with np.errstate(invalid="ignore"):
        difference = np.where(x == y, 0.0, np.asarray(x) - np.asarray(y))
    ranked = ranks(np.abs(difference))[difference != 0]
    if not len(ranked):
        return 1.0
    plus = float(ranked[difference[difference != 0] > 0].sum())
    total = float(ranked.sum())
    tails = (_rank_sum_probability(ranked, rank_sum) for rank_sum in (plus, total - plus))
    return min(1.0, 2.0 * min(tails))


@validate_call
def rank_sum(x: Vector, y: Vector) -> float:
    """Return the two-sided p-value of the rank-sum test of unpaired (N,) and (M,) values.

    It is the share of all ways of choosing x from both samples whose rank sum is as far from its
    mean, ties included; beyond `MAX_EXACT` values in all, the rank sum is taken as normal.
    """
    ranked = ranks(np.concatenate([x, y]))
    first, count = len(x), len(ranked)
    middle = first * (count + 1) / 2
    distance = abs(float(ranked[:first].sum()) - middle)
    if count > MAX_EXACT:
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
    """Return (n,) p-values adjusted for multiple tests (Holm, 1979)."""
    raw = np.asarray(p_values, dtype=np.float64)
    if not ((raw >= 0) & (raw <= 1)).all():
        raise InvalidArgumentError(f"`p_values` must lie in [0, 1], got {raw.tolist()}")
    order = np.argsort(raw, kind="stable")
    adjusted = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    result = np.empty(len(raw))
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


def _rank_sum_probability(ranked: Floats, bound: float) -> float:
    """Return P(sum of the ranks of random signs <= bound)."""
    if len(ranked) > MAX_EXACT:
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
    """The content of a critical-difference diagram (Demsar, 2006, figure 1).

    Attributes:
        agents: names, the best mean rank first.
        ranks: (A,) their mean ranks.
        p_values: (A, A) of pairs, adjusted for multiple tests.
        groups: maximal ranges (first, last) of agents without significant differences.
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

    A pair differs if both Friedman's test and Wilcoxon's test with Holm's correction reject
    (Benavoli et al., 2016).
    """
    if len(agents) != values.shape[1]:
        raise InvalidArgumentError(
            f"`agents` must name {values.shape[1]} columns, got {len(agents)} names"
        )
    test = friedman(values)
    order = np.argsort(test.mean_ranks, kind="stable")
    p_values = wilcoxon_holm(values)[np.ix_(order, order)]
    alike = (p_values >= alpha) | (test.p_value >= alpha)
    return CriticalDifference(
        agents=tuple(agents[index] for index in order),
        ranks=test.mean_ranks[order],
        blocks=len(values),
        friedman=test,
        p_values=p_values,
        groups=_find_groups(alike),
        alpha=alpha,
    )


def _find_groups(alike: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the maximal ranges of neighbours in which every pair is alike."""
    groups: list[tuple[int, int]] = []
    count = len(alike)
    for first in range(count):
        last = first
        while last + 1 < count and alike[first : last + 2, first : last + 2].all():
            last += 1
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return tuple(groups)
