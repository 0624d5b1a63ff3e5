"""Ranks, with ties shared."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.typed import Axes, checked_types

Numbers = NDArray[np.float64]
Flat = Annotated[Numbers, Axes()]
"""Of any shape, without NaN, and not empty, as the ones below."""
Rows = Annotated[Numbers, Axes(1)]
Vector = Annotated[Numbers, Axes(1, 1)]
Matrix = Annotated[Numbers, Axes(2, 2)]


@checked_types
def ranks(values: Rows) -> Numbers:
    """Rank along the last axis, 1 the lowest; equal values share the mean of their ranks.

    The rank of x is 1 + #{y < x} + (#{y = x} - 1) / 2 (midranks; Kendall, 1945).

    Args:
        values: (..., A); infinities are values, NaN is not allowed.

    Returns:
        (..., A); each last axis sums to A (A + 1) / 2.

    Raises:
        InvalidArgumentError: a value is NaN, or there is none.
    """
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
