"""Regret, how it is made comparable over problems, and numbers that sum it up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Matrix, Numbers, Rows, Vector
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types


@checked_types
def regret(values: Numbers, best: float) -> Numbers:
    """Return how far values lie above the best that is known: f - f_best."""
    return np.asarray(values, dtype=np.float64) - best


@checked_types
def normalised_regret(values: Numbers, best: float, worst: float) -> Numbers:
    """Return (f - f_best) / (f_worst - f_best), cut off at 0 and 1.

    Wang et al. (2022, figure 3) take the worst of all evaluated configurations. Where courses
    diverge, it is so large that all others look alike; the report therefore takes what a first
    trial brings, and cuts off above. Where best and worst are equal, all regret is 0.

    Args:
        values: any shape; infinity becomes 1.
        best: value with regret 0: the optimum, or the lowest value seen.
        worst: value with regret 1.

    Raises:
        InvalidArgumentError: `worst` is lower than `best`, or one is not finite.
    """
    if not (np.isfinite(best) and np.isfinite(worst) and best <= worst):
        raise InvalidArgumentError(
            f"`best` must be finite and at most `worst`, got {best!r} and {worst!r}"
        )
    above = regret(values, best)
    if best == worst:
        return np.where(above > 0, 1.0, 0.0)
    result: Numbers = np.clip(above / (worst - best), 0.0, 1.0)
    return result


@checked_types
def area(values: Rows, at: Vector) -> Numbers:
    """Return the mean height of step functions over an axis: the anytime area under the curve.

    Equal to sum_i y_i (x_(i+1) - x_i) / (x_T - x_1). With logarithms of time for `at`, every decade
    counts alike.

    Args:
        values: (..., T), each held until the next point.
        at: (T,) rising points.

    Raises:
        InvalidArgumentError: there are fewer than two points, or they do not rise.
    """
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
def worst_problem(values: Matrix, problems: Sequence[str]) -> list[tuple[str, float]]:
    """Return, for each agent, the problem on which it does worst, and its value there.

    Args:
        values: (P, A), for example mean normalised regret; lower is better.
        problems: names of the rows. Of equals, the first.

    Raises:
        InvalidArgumentError: names and rows differ in number.
    """
    if len(problems) != len(values):
        raise InvalidArgumentError(
            f"`problems` must name {len(values)} rows, got {len(problems)} names"
        )
    places = np.argmax(values, axis=0)
    return [(problems[place], float(values[place, a])) for a, place in enumerate(places)]


@checked_types
def overtuning(test: Vector) -> float:
    """Return how much worse the final incumbent is on test data than the best one before it.

    test(lambda*_T) - min_(t <= T) test(lambda*_t) over the incumbents lambda*_t in turn (Schneider,
    Bischl and Feurer, 2025); 0 where tuning on did no harm.

    Args:
        test: (T,) test loss of the incumbents, the first one first.

    Raises:
        InvalidArgumentError: there is no incumbent, or one is NaN.
    """
    return float(test[-1] - test.min())


@checked_types
def relative_overtuning(test: Vector) -> float:
    """Return overtuning over what tuning could have gained: 1 or more means all gain was lost.

    Overtuning / (test(lambda*_1) - min_t test(lambda*_t)) (Schneider, Bischl and Feurer, 2025); 0
    without overtuning, infinity where no incumbent was better than the first, yet the last
    is worse.

    Raises:
        InvalidArgumentError: there is no incumbent, or one is NaN.
    """
    lost, gained = overtuning(test), float(test[0] - test.min())
    if lost == 0:
        return 0.0
    return lost / gained if gained > 0 else float("inf")
