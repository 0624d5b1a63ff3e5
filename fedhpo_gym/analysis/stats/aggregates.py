"""Numbers and curves over problems and runs at once (Agarwal et al., 2021; `rliable`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Flat, Numbers, Rows, Vector
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types


@checked_types
def interquartile_mean(values: Flat) -> float:
    """Return the mean without the lowest and highest quarter: IQM.

    Of n values, floor(n / 4) are left out at each end (Agarwal et al., 2021, section 4.3).

    Args:
        values: any shape; runs of all problems count alike.

    Raises:
        InvalidArgumentError: there is no value, or one is NaN.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


@checked_types
def ecdf(values: Flat, at: Numbers) -> Numbers:
    """Return the share of values that are at most each threshold: (T,).

    Of normalised regret, it is figure 3 of Wang et al. (2022). Of one agent's normalised results,
    it is the performance profile of Agarwal et al. (2021, equation 1), turned for results of which
    the lower are better.

    Args:
        values: any shape.
        at: (T,) thresholds.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    return np.searchsorted(ordered, at, side="right") / len(ordered)


@checked_types
def data_profile(curves: Rows, tolerance: float) -> Numbers:
    """Return the share of runs that have solved their problem at each time: (R, T) -> (T,).

    Solved is f <= f_best + tolerance (f_start - f_best): normalised regret of at most `tolerance`
    (More and Wild, 2009, equations 2.2 and 2.5, with budgets in place of function evaluations).

    Args:
        curves: (R, T) normalised regret of the incumbent.
        tolerance: in [0, 1].
    """
    result: Numbers = (curves <= tolerance).mean(axis=0)
    return result


@checked_types
def probability_of_improvement(x: Sequence[Vector], y: Sequence[Vector]) -> float:
    """Return how likely a run of x is better than one of y on a random problem.

    Mean over problems of #{x_i < y_j} + #{x_i = y_j} / 2 over the number of pairs (Agarwal et al.,
    2021, section 4.3): the Mann-Whitney statistic.

    Args:
        x: runs on each problem, (S,) each; lower is better.
        y: runs of another agent on the same problems, which may be more or fewer.

    Raises:
        InvalidArgumentError: there is no problem, or a number of problems that differs.
    """
    if not len(x) or len(x) != len(y):
        raise InvalidArgumentError(
            f"`x` and `y` must hold the same problems, at least one, got {len(x)} and {len(y)}"
        )
    shares = [np.mean((a[:, None] < b) + (a[:, None] == b) / 2) for a, b in zip(x, y, strict=True)]
    return float(np.mean(shares))
