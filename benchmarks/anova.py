"""Functional analysis of variance of a complete grid.

On a complete grid with equal weights, the functional ANOVA of a forest (Hutter, Hoos,
Leyton-Brown: An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014) is the
classic decomposition: marginals are means over axes, exact, and no model is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shares(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Decompose the variance of a grid that was measured under two seeds or more.

    Variances are covariances between seeds: what one seed alone shows is noise, and would else
    count as an interaction of everything.

    Args:
        values: (*grid, seeds).

    Returns:
        (axes,) shares of the main effects, (axes,) shares of all effects that an axis is part of,
        and the share of the seeds' mean variance that all seeds have in common.
    """
    axes = range(values.ndim - 1)
    whole = _common(values)
    if whole <= 0.0:
        return np.zeros(len(axes)), np.zeros(len(axes)), 0.0
    alone = [_common(values.mean(axis=tuple(a for a in axes if a != axis))) for axis in axes]
    without = [_common(values.mean(axis=axis)) for axis in axes]
    each = float(np.mean([np.var(values[..., seed]) for seed in range(values.shape[-1])]))
    return np.array(alone) / whole, 1.0 - np.array(without) / whole, whole / each


def _common(values: NDArray[np.float64]) -> float:
    """Return the mean covariance of two different seeds; with one seed, its variance."""
    flat = values.reshape(-1, values.shape[-1])
    covariance = np.atleast_2d(np.cov(flat, rowvar=False, bias=True))
    count = len(covariance)
    if count == 1:
        return float(covariance[0, 0])
    return float((covariance.sum() - np.trace(covariance)) / (count * (count - 1)))
