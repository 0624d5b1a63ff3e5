"""How far two rankings of the same things agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.errors import InvalidArgumentError

_PAIRS_AT_ONCE = 1 << 22


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Return Kendall's rank correlation of two lists of values, tau-b: ties are corrected for.

    tau-b = (C - D) / sqrt((P - T) (P - U)) of P pairs, of which C are in the same order in both
    lists, D in opposite order, T tied in one list and U in the other (Kendall, 1945).

    Args:
        one: (n,) numbers; infinity is larger than all others, and equal to itself.
        other: (n,) numbers.

    Returns:
        A number in [-1, 1]; NaN where all values of a list are equal, which ranks nothing.

    Raises:
        InvalidArgumentError: the lists are not of one length, or hold NaN.
    """
    lists = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if lists[0].ndim != 1 or lists[0].shape != lists[1].shape or np.isnan(lists).any():
        raise InvalidArgumentError(
            "`one` and `other` must be lists of numbers of one length, got the shapes "
            f"{lists[0].shape} and {lists[1].shape}"
        )
    return tau([pairs(*lists)])


def pairs(one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return what tau-b is made of: ordered pairs of two (n,) lists.

    Returns:
        How many more agree than disagree, and how many are not tied in each list. Sums of them over
        groups give the correlation within groups; see `tau`.
    """
    first, second = (np.unique(values, return_inverse=True)[1] for values in (one, other))
    return _agreement(first, second), _untied(first), _untied(second)


def tau(groups: Sequence[tuple[float, float, float]]) -> float:
    """Return tau-b within groups of `pairs`; NaN where one of the lists is tied everywhere."""
    agree, *untied = (sum(counts) for counts in zip(*groups, strict=True)) if groups else (0, 0, 0)
    product = untied[0] * untied[1]
    return float(agree / product**0.5) if product else float("nan")


def _agreement(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Return how many more ordered pairs agree than disagree."""
    rows = max(_PAIRS_AT_ONCE // max(len(first), 1), 1)
    total = 0
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        signs = (np.sign(ranks[part, None] - ranks, dtype=np.float32) for ranks in (first, second))
        total += int(np.vdot(*signs))
    return float(total)


def _untied(ranks: NDArray[np.intp]) -> float:
    """Return how many ordered pairs are not tied."""
    return float(len(ranks) ** 2 - (np.bincount(ranks).astype(np.float64) ** 2).sum())
