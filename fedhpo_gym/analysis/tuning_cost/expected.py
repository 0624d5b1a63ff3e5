"""Procedure 1: what random search finds with k trials, simulated and in closed form.

All draws are with replacement from the runs at hand: what infinitely many bootstraps come to
(Prabhu Teja S et al., 2020, appendix D; after Dodge et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Numbers, Vector
from fedhpo_gym.analysis.tuning_cost.library import Runs
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream
from fedhpo_gym.typed import checked_types


@checked_types
def selection(validation: Vector, budget: int) -> Numbers:
    """Return how likely each run is the one that a search selects: (N,), summing to 1.

    Of k draws the run of lowest validation is selected. With values in rising order, that is the
    i-th of n with probability ((n - i + 1) / n)^k - ((n - i) / n)^k: equation 2, turned for losses.
    Runs of equal validation share what they have together.

    Args:
        validation: (N,).
        budget: k, the number of trials.

    Raises:
        InvalidArgumentError: there is no trial.
    """
    _check_budget(budget)
    count = len(validation)
    _, group, sizes = np.unique(validation, return_inverse=True, return_counts=True)
    at_least = np.append(count - np.cumsum(sizes) + sizes, 0) / count
    shares = (at_least[:-1] ** budget - at_least[1:] ** budget) / sizes
    result: Numbers = shares[group]
    return result


@checked_types
def expected_best(runs: Runs, budget: int) -> tuple[float, float]:
    """Return mean and variance of what is reported after k trials: equations 2 and 3.

    The paper's program takes test values for both columns, that is, it selects by them; ours
    selects by validation and reports test. `Runs.of(test)` gives theirs.

    Raises:
        InvalidArgumentError: there is no trial.
    """
    chances = selection(runs.validation, budget)
    drawn = chances > 0  # an infinite loss that is never selected does no harm
    mean = float(chances[drawn] @ runs.test[drawn])
    if not np.isfinite(mean):
        return mean, float("nan")
    return mean, float(chances[drawn] @ (runs.test[drawn] - mean) ** 2)


@checked_types
def expected_curve(runs: Runs, budgets: Sequence[int]) -> Numbers:
    """Return the means of `expected_best` for several budgets: (K,)."""
    return np.array([expected_best(runs, budget)[0] for budget in budgets])


@checked_types
def simulate(runs: Runs, budget: int, repetitions: int = 1000, seed: int = 0) -> Numbers:
    """Return what searches of k trials report: procedure 1 itself, (repetitions,).

    Of equal validations the first draw is selected.

    Raises:
        InvalidArgumentError: there is no trial or no repetition.
    """
    _check_budget(budget)
    drawn = _drawn(len(runs), (repetitions, budget), seed, "procedure_1")
    best = np.argmin(runs.validation[drawn], axis=1)
    result: Numbers = runs.test[drawn[np.arange(repetitions), best]]
    return result


@checked_types
def simulate_by_cost(
    runs: Runs, budgets: Vector, repetitions: int = 1000, seed: int = 0
) -> Numbers:
    """Return the mean of what searches report within budgets of cost: (K,), appendix F.

    Runs are drawn one after another until the largest budget is spent; one that does not end within
    a budget does not count for it. Before the first run ends there is nothing: infinity.

    Args:
        runs: with their costs.
        budgets: (K,) in the unit of the costs.
        repetitions: number of searches.
        seed: of the draws.

    Raises:
        InvalidArgumentError: there is no repetition, or a budget is not finite.
    """
    if not np.isfinite(budgets).all() or not len(budgets):
        raise InvalidArgumentError(f"`budgets` must be finite, and at least one, got {budgets!r}")
    most = max(1, int(np.ceil(np.max(budgets) / runs.cost.min())))
    drawn = _drawn(len(runs), (repetitions, most), seed, "procedure_1_by_cost")
    ends = np.cumsum(runs.cost[drawn], axis=1)
    lowest = np.minimum.accumulate(runs.validation[drawn], axis=1)
    is_new = np.ones_like(drawn, dtype=bool)
    is_new[:, 1:] = runs.validation[drawn[:, 1:]] < lowest[:, :-1]
    best = np.maximum.accumulate(np.where(is_new, np.arange(most), 0), axis=1)
    reported = np.take_along_axis(runs.test[drawn], best, axis=1)
    found = []
    for budget in budgets:
        ended = np.count_nonzero(ends <= budget, axis=1)
        values = reported[np.arange(repetitions), np.maximum(ended - 1, 0)]
        found.append(np.mean(np.where(ended > 0, values, np.inf)))
    return np.array(found)


@checked_types
def probability_of_best(libraries: Mapping[str, Runs], budget: int) -> dict[str, float]:
    """Return how likely each algorithm reports the lowest value after k trials: figures 1 and 10.

    In closed form. Each algorithm reports value v with probability p(v), and a higher one with
    G(v), independently of the others; equals share by lot. So an algorithm wins with probability
    sum_v p(v) int_0^1 prod_others (G(v) + (1 - u) p(v)) du, a polynomial that few nodes integrate
    exactly. The paper simulates, without replacement, and gives ties to the first in its list.

    Raises:
        InvalidArgumentError: there is no trial or no algorithm.
    """
    if not libraries:
        raise InvalidArgumentError("`libraries` must hold at least one algorithm, got none")
    levels = np.unique(np.concatenate([runs.test for runs in libraries.values()]))
    chances = np.zeros((len(libraries), len(levels)))
    for row, runs in zip(chances, libraries.values(), strict=True):
        np.add.at(row, np.searchsorted(levels, runs.test), selection(runs.validation, budget))
    higher = np.clip(1.0 - np.cumsum(chances, axis=1), 0.0, 1.0)
    nodes, weights = np.polynomial.legendre.leggauss(len(libraries) // 2 + 1)
    found = np.zeros(len(libraries))
    for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
        beaten = higher + node * chances
        for place in range(len(libraries)):
            others = np.prod(np.delete(beaten, place, axis=0), axis=0)
            found[place] += weight * float(chances[place] @ others)
    return dict(zip(libraries, found.tolist(), strict=True))


def _drawn(count: int, shape: tuple[int, int], seed: int, name: str) -> np.ndarray:
    if shape[0] < 1:
        raise InvalidArgumentError(f"`repetitions` must be at least 1, got {shape[0]}")
    return stream(seed, name).integers(count, size=shape)


def _check_budget(budget: int) -> None:
    if budget < 1:
        raise InvalidArgumentError(f"`budget` must be at least one trial, got {budget}")
