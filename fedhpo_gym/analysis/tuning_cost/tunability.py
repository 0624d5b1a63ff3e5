"""One number for an algorithm whose tuning is charged (Prabhu Teja S et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Matrix, Numbers, Rows, Vector
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import Axes, checked_types

ALPHAS: Final = (0.9, 0.95, 1.0)
"""Levels of alpha-tunability in the paper's program."""


@checked_types
def relative_performance(expected: Annotated[Numbers, Axes(3, 3)]) -> Numbers:
    """Return S(o, k): mean over problems of the best over an algorithm's own, at equal budget.

    S(o, k) = 1 / |P| sum_p min_o' o'(k, p) / o(k, p), the paper's equation (section 5.2) turned for
    losses: 1 for an algorithm that is nowhere beaten with k trials.

    Args:
        expected: (A, P, K) expected losses of algorithms on problems after k trials; positive.

    Returns:
        (A, K), in [0, 1].

    Raises:
        InvalidArgumentError: a loss is not positive.
    """
    if not np.all(expected > 0):
        raise InvalidArgumentError("`expected` must be positive: ratios of losses are taken")
    result: Numbers = (expected.min(axis=0) / expected).mean(axis=1)
    return result


def cpe(budget: int) -> Numbers:
    """Return the weights of cumulative performance, early: proportional to T, T - 1, ..., 1."""
    return _normalised(np.arange(budget, 0, -1.0))


def cpl(budget: int) -> Numbers:
    """Return the weights of cumulative performance, late: proportional to 1, 2, ..., T."""
    return _normalised(np.arange(1.0, budget + 1))


def cpu(budget: int) -> Numbers:
    """Return the weights of cumulative performance, uniform."""
    return _normalised(np.ones(budget))


def exponential(budget: int, rate: float) -> Numbers:
    """Return weights that fall as exp(-rate t)."""
    return _normalised(np.exp(-rate * np.arange(budget)))


def one_shot(budget: int) -> Numbers:
    """Return the weights of performance with one trial."""
    return _normalised(np.eye(1, budget)[0])


def peak(budget: int) -> Numbers:
    """Return the weights of performance with all trials."""
    return _normalised(np.eye(1, budget, budget - 1)[0])


WEIGHTS: Final[Mapping[str, Callable[[int], Numbers]]] = {
    "cpe": cpe,
    "cpl": cpl,
    "cpu": cpu,
    "one_shot": one_shot,
    "peak": peak,
}
"""Weights by name."""


@checked_types
def omega_tunability(expected: Rows, weights: Vector) -> Numbers:
    """Return sum_t omega_t L_t (appendix E): in the unit of the losses, lower is better.

    Args:
        expected: (..., T) expected loss after 1, ..., T trials.
        weights: (T,) not negative, summing to 1; see `WEIGHTS`.

    Raises:
        InvalidArgumentError: the weights are no weights, or not as many as budgets.
    """
    if weights.shape != expected.shape[-1:] or np.any(weights < 0) or abs(weights.sum() - 1) > 1e-9:
        raise InvalidArgumentError(
            f"`weights` must be {expected.shape[-1]} numbers, not negative, that sum to 1"
        )
    counted = weights > 0  # what has no weight may be infinite
    result: Numbers = expected[..., counted] @ weights[counted]
    return result


@checked_types
def alpha_tunability(expected: Matrix, alpha: float) -> Numbers:
    """Return how many trials bring an algorithm to a share of the best that any one reaches.

    The first k with L_k <= L_best / alpha, where L_best is the lowest expected loss of any
    algorithm at any budget here. Infinity where none is enough.

    Args:
        expected: (A, T) expected loss after 1, ..., T trials on one problem; positive.
        alpha: in (0, 1].

    Returns:
        (A,).

    Raises:
        InvalidArgumentError: `alpha` is out of range or a loss is not positive.
    """
    if not 0 < alpha <= 1:
        raise InvalidArgumentError(f"`alpha` must lie in (0, 1], got {alpha!r}")
    if not np.all(expected > 0):
        raise InvalidArgumentError("`expected` must be positive: ratios of losses are taken")
    reached = expected <= expected.min() / alpha
    first = np.argmax(reached, axis=1) + 1.0
    return np.where(reached.any(axis=1), first, np.inf)


def _normalised(weights: Numbers) -> Numbers:
    if not len(weights):
        raise InvalidArgumentError("`budget` must be at least one trial")
    result: Numbers = weights / weights.sum()
    return result
