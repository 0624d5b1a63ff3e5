"""Functional analysis of variance: how much of a function's variance each hyperparameter causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def variance_shares(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return each axis's share of the variance, alone and with all its interactions.

    Exact on a complete grid whose points weigh the same (Hooker, 2007; Hutter, Hoos and
    Leyton-Brown, 2014). Alone: Var(E[f | x_i]) / Var(f). With interactions:
    E[Var(f | all but x_i)] / Var(f). These are Sobol's first-order and total indices.

    Args:
        values: one finite number per point of the grid; an axis per hyperparameter.

    Returns:
        (axes, 2) shares in [0, 1]; None where all values are equal.
    """
    total = values.var()
    if not total > 0:
        return None
    shares = []
    for axis in range(values.ndim):
        others = tuple(a for a in range(values.ndim) if a != axis)
        shares.append((values.mean(axis=others).var(), values.var(axis=axis).mean()))
    return np.asarray(np.clip(np.array(shares) / total, 0.0, 1.0))
