"""Functional analysis of variance: how much of a function's variance each hyperparameter causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def variance_shares(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float] | None:
    """Return each axis's share of the variance, alone and with all its interactions.

    Exact on a complete grid whose points weigh the same (Hooker, 2007; Hutter, Hoos and
    Leyton-Brown, 2014). Alone: Var(E[f | x_i]) / Var(f). With interactions:
    1 - Var(E[f | all but x_i]) / Var(f). These are Sobol's first-order and total indices.

    Under several seeds, variances are covariances between two of them: what one seed alone shows
    is noise, and would else count as an interaction of everything.

    Args:
        values: (*grid, seeds) finite numbers: one per point of the grid and seed.

    Returns:
        (axes, 2) shares in [0, 1], and the share of the seeds' mean variance that all seeds have in
        common; None where they have none.
    """
    whole = _common(values)
    if not whole > 0:
        return None
    axes = range(values.ndim - 1)
    shares = []
    for axis in axes:
        alone = values.mean(axis=tuple(a for a in axes if a != axis))
        shares.append((_common(alone), whole - _common(values.mean(axis=axis))))
    each = values.reshape(-1, values.shape[-1]).var(axis=0).mean()
    return np.clip(np.array(shares) / whole, 0.0, 1.0), float(whole / each)


def _common(values: NDArray[np.float64]) -> float:
    """Return the mean covariance of two different seeds; with one seed, its variance."""
    flat = values.reshape(-1, values.shape[-1])
    covariance = np.atleast_2d(np.cov(flat, rowvar=False, bias=True))
    count = len(covariance)
    if count == 1:
        return float(covariance[0, 0])
    return float((covariance.sum() - np.trace(covariance)) / (count * (count - 1)))
