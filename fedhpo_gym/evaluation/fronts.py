"""Pareto fronts of points whose coordinates are errors, lower is better, and what they dominate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.errors import InvalidArgumentError


def non_dominated(errors: ArrayLike) -> NDArray[np.bool_]:
    """Return which points no other point dominates.

    A point dominates another if it is nowhere worse and somewhere better: equal points stay
    together.

    Args:
        errors: (n, objectives) numbers.

    Returns:
        (n,) marks.

    Raises:
        InvalidArgumentError: the array has another number of axes, or holds NaN.
    """
    points = _checked("errors", errors)
    distinct, inverse = np.unique(points, axis=0, return_inverse=True)
    kept = np.ones(len(distinct), dtype=np.bool_)
    # Sorted rows: what dominates a row stands before it.
    for i, point in enumerate(distinct):
        if kept[i]:
            kept[i + 1 :] &= (distinct[i + 1 :] < point).any(axis=1)
    return np.asarray(kept[inverse.reshape(-1)])


def hypervolume(errors: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume of what points dominate, bounded by a reference point.

    Exact, by slicing along the last objective (While et al., 2006). Made for fronts: the time grows
    quickly with the number of objectives.

    Args:
        errors: (n, objectives) numbers; points that are not better than the reference in every
            objective add nothing.
        reference: (objectives,) finite numbers.

    Raises:
        InvalidArgumentError: the arrays do not fit together, or hold what is no number.
    """
    points = _checked("errors", errors)
    corner = np.asarray(reference, dtype=np.float64)
    if corner.shape != points.shape[1:] or not np.isfinite(corner).all():
        raise InvalidArgumentError(
            f"`reference` must be {points.shape[1]} finite numbers, one per objective, got "
            f"{corner.tolist()}"
        )
    inside = points[(points < corner).all(axis=1)]
    return _volume(inside, corner)


def _volume(points: NDArray[np.float64], corner: NDArray[np.float64]) -> float:
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(corner[0] - points.min())
    heights = np.unique(points[:, -1])
    depths = np.diff(np.append(heights, corner[-1]))
    total = 0.0
    for height, depth in zip(heights, depths, strict=True):
        below = points[points[:, -1] <= height, :-1]
        total += depth * _volume(below[non_dominated(below)], corner[:-1])
    return float(total)


def _checked(name: str, values: ArrayLike) -> NDArray[np.float64]:
    points = np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or not points.shape[1] or np.isnan(points).any():
        raise InvalidArgumentError(
            f"`{name}` must have the axes (points, objectives) and hold numbers, got the shape "
            f"{points.shape}"
        )
    return points
