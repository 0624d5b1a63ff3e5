"""From curves that are known at some rounds to what is best so far at any round."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NOTICED = 2e-4
"""A log loss falls by more than this, or not at all: rounding of float32 must not look like it."""


def running_best(columns: Floats) -> Indices:
    """Return, for every knot, the knot up to it that holds the best-so-far.

    Args:
        columns: (K, n) log losses at the knots.

    Returns:
        (K, n) positions; losses taken there never rise from knot to knot.
    """
    chosen = np.zeros(columns.shape, dtype=np.int64)
    best = columns[0].copy()
    for knot in range(1, len(columns)):
        better = columns[knot] < best - NOTICED
        chosen[knot] = chosen[knot - 1]
        chosen[knot][better] = knot
        np.copyto(best, columns[knot], where=better)
    return chosen


def way_between(
    rounds: NDArray[np.integer], start: NDArray[np.integer], end: NDArray[np.integer]
) -> Floats:
    """Return (n,) shares of the way from start to end, in log rounds."""
    at, first, last = (_logarithms(each) for each in (rounds, start, end))
    return (at - first) / (last - first)


def _logarithms(rounds: NDArray[np.integer]) -> Floats:
    # One by one: a logarithm of an array may round by the position in it.
    distinct, where = np.unique(rounds, return_inverse=True)
    return np.array([math.log(each) for each in distinct.tolist()])[where]
