"""From curves that are known at some rounds to what is best so far at any round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NOTICED = 2e-4
"""A log loss falls by more than this, or not at all: rounding of float32 must not look like it."""


def running_best(losses: Floats) -> Indices:
    """Return, for every knot, the knot up to it that holds the best-so-far.

    Args:
        losses: (n, K) log losses at the knots.

    Returns:
        (n, K) positions; `losses` taken there never rise along a row.
    """
    chosen = np.zeros(losses.shape, dtype=np.int64)
    best = losses[:, 0].copy()
    for knot in range(1, losses.shape[1]):
        better = losses[:, knot] < best - NOTICED
        chosen[:, knot] = np.where(better, knot, chosen[:, knot - 1])
        np.copyto(best, losses[:, knot], where=better)
    return chosen


@dataclass(frozen=True)
class Between:
    """Where rounds lie among the knots.

    Attributes:
        before: (n,) the last knot that is not beyond.
        after: (n,) the knot after it; the same at the last one.
        weight: (n,) share of the way to `after`, in log rounds; 0 on a knot.
    """

    before: Indices
    after: Indices
    weight: Floats

    @classmethod
    def of(cls, rounds: NDArray[np.integer], knots: Indices) -> Between:
        """Return the places of (n,) rounds from the first to the last of (K,) knots."""
        before = np.searchsorted(knots, rounds, side="right") - 1
        after = np.minimum(before + 1, len(knots) - 1)
        # One by one: a logarithm of an array may round by the position in it.
        logs = np.array([math.log(r) for r in rounds.tolist()])
        ends = np.array([math.log(r) for r in knots.tolist()])
        gap = ends[after] - ends[before]
        weight = np.where(gap > 0, (logs - ends[before]) / np.where(gap > 0, gap, 1.0), 0.0)
        return cls(before, after, weight)
