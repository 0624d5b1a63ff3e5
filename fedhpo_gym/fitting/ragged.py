"""Courses that end early: how their curves would go on, told by those that went on.

A surrogate predicts whole curves, and what stands for a curve is learned from whole curves. So the
rounds that a course lacks are filled in, from its own beginning. What is filled in shapes the
directions in which curves differ, and the coefficients of the short ones. It is no data: no error
is measured there, and a network's loss leaves it out.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Floats = NDArray[np.float64]

RIDGES = tuple(10.0**power for power in range(-4, 5))
"""Penalties to choose from; with the largest, every course rises by the mean."""


def completed(curves: Array, trained: NDArray[np.bool_]) -> Array:
    """Return curves with the rounds that courses lack filled in.

    From each round at which courses end to the next, they rise as their beginning lets one expect,
    by a linear regression over the courses that were trained on. Where none was, all stay.

    Args:
        curves: (n, K, targets); what lies at rounds that were not trained is not read.
        trained: (n, K) which rounds courses have: the first ones, and at least one.
    """
    if trained.all():
        return curves
    ends = np.unique(trained.sum(axis=1)).tolist()
    found = curves.astype(np.float64)
    for start, end in pairwise(ends):
        longer = trained[:, end - 1]
        known, heads = found[longer, :end], found[~longer, :start]
        found[~longer, start:end] = _continued(known, heads, start)
    found[:, ends[-1] :] = found[:, ends[-1] - 1 : ends[-1]]
    return found.astype(np.float32)


def _continued(known: Floats, heads: Floats, start: int) -> Floats:
    """Return (s, K - start, targets): how s curves of `start` rounds go on.

    Ridge regression in its dual form (Saunders et al., 1998); the penalty has the least error when
    each course is left out in turn.

    Args:
        known: (m, K, targets) curves that go on.
        heads: (s, start, targets) those that do not.
        start: where they end.
    """
    inputs = known[:, :start].reshape(len(known), -1)
    rises = (known[:, start:] - known[:, start - 1 : start]).reshape(len(known), -1)
    centre, mean = inputs.mean(axis=0), rises.mean(axis=0)
    inputs, rises = inputs - centre, rises - mean
    gram = inputs @ inputs.T
    unit = max(float(np.trace(gram)) / len(gram), 1e-12)
    ridge = min(RIDGES, key=lambda ridge: _left_out(gram / unit, rises, ridge))
    weights = np.linalg.solve(gram / unit + ridge * np.eye(len(gram)), rises)
    near = (heads.reshape(len(heads), -1) - centre) @ inputs.T / unit
    rise = (mean + near @ weights).reshape(len(heads), -1, known.shape[2])
    return np.asarray(heads[:, start - 1 : start] + rise)


def _left_out(gram: Floats, rises: Floats, ridge: float) -> float:
    """Return the squared error of every course told by the others, up to the shift of the mean."""
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    missed = (inverse @ rises) / np.diag(inverse)[:, None]
    return float((missed**2).sum())
