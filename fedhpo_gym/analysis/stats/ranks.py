"""Ranks, with ties shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def ranks(values: Numbers) -> Numbers:
    """Rank along the last axis, 1 the lowest; equal values share the mean of their ranks.

    The rank of x is 1 + #{y < x} + (#{y = x} - 1) / 2 (midranks; Kendall, 1945).

    Args:
        values: (..., A); infinities are values, NaN is not allowed.

    Returns:
        (..., A); each last axis sums to A (A + 1) / 2.
    """
    values = np.asarray(values, dtype=np.float64)
    assert not np.isnan(values).any(), "ranks of NaN mean nothing"  # noqa: S101 - our own invariant
    below = np.zeros(values.shape)
    equal = np.zeros(values.shape)
    for other in range(values.shape[-1]):  # few agents, many times: no (A, A) array per time
        column = values[..., other : other + 1]
        below += column < values
        equal += column == values
    return 1.0 + below + (equal - 1.0) / 2.0


def mean_ranks(values: Numbers) -> Numbers:
    """Return mean ranks over blocks: (B, A) -> (A,)."""
    result: Numbers = ranks(values).mean(axis=0)
    return result
