"""Courses that end early: how their curves would go on, told by those that went on.

A surrogate predicts whole curves, and what stands for a curve is learned from whole curves. So the
rounds that a course lacks are filled in, from its own beginning. What is filled in shapes the
directions in which curves differ, and the coefficients of the short ones. It is no data: no error
is measured there, and a network's loss leaves it out.
"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.surrogates.kernel import matern

Array = NDArray[np.float32]
Floats = NDArray[np.float64]

DIRECTIONS = 8
"""Principal components that stand for the beginning of a curve."""
LENGTHS = (1.0, 2.0, 4.0, 8.0)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e4)
"""Scales of the kernel, and penalties; with the largest, the line alone says how courses go on."""
WIDER = 2.0
"""By how many widths of their range the values of those that go on may be exceeded."""
SETTINGS = 0.5
"""What a setting counts, where the direction in which beginnings differ most has deviation 1."""


def completed(curves: Array, trained: NDArray[np.bool_], settings: Array) -> Array:
    """Return curves with the rounds that courses lack filled in.

    From each round at which courses end to the next, a line says what follows from the last value,
    and courses of similar settings and beginnings say the rest. It stays near the range of those
    that go on. Where none was trained on, all stay.

    Args:
        curves: (n, K, targets); what lies at rounds that were not trained is not read.
        trained: (n, K) which rounds courses have: the first ones, and at least one.
        settings: (n, columns) configurations and client sample rates, each column in [-1, 1].
    """
    if trained.all():
        return curves
    ends = np.unique(trained.sum(axis=1)).tolist()
    found = curves.astype(np.float64)
    for start, end in pairwise(ends):
        longer = trained[:, end - 1]
        beginnings = _beginnings(found[:, :start].reshape(len(found), -1), longer)
        near = np.concatenate([beginnings, SETTINGS * settings], axis=1)
        line = _line(found[longer, start - 1], found[longer, start:end])
        expected = line * found[:, start - 1 : start]
        rest = found[longer, start:end] - expected[longer]
        told = _told(near[longer], rest.reshape(len(rest), -1), near[~longer])
        told = expected[~longer] + told.reshape(-1, *rest.shape[1:])
        low, high = found[longer, start:end].min(axis=0), found[longer, start:end].max(axis=0)
        room = WIDER * (high - low)
        found[~longer, start:end] = np.clip(told, low - room, high + room)
    found[:, ends[-1] :] = found[:, ends[-1] - 1 : ends[-1]]
    return found.astype(np.float32)


def _beginnings(heads: Floats, longer: NDArray[np.bool_]) -> Floats:
    """Return (n, directions) of (n, columns): where those that go on differ most, of unit size."""
    known = heads[longer]
    centre = known.mean(axis=0)
    directions = np.linalg.svd(known - centre, full_matrices=False)[2][:DIRECTIONS]
    scores = (heads - centre) @ directions.T
    return np.asarray(scores / max(float(scores[longer, :1].std()), 1e-12))


def _line(last: Floats, later: Floats) -> Floats:
    """Return the (rounds, targets) slopes of (m, rounds, targets) later values on (m, targets)."""
    centred = last - last.mean(axis=0)
    product_sum = np.einsum("mt,mrt->rt", centred, later)
    return np.asarray(product_sum / np.maximum((centred**2).sum(axis=0), 1e-9))


def _told(known: Floats, values: Floats, asked: Floats) -> Floats:
    """Return the (s, targets) values of what resembles `asked`.

    Kernel ridge regression about the mean. A Matern kernel of smoothness 3/2 forgets with the
    distance, so a course that resembles no other gets the mean: with lines alone, the best courses
    would become better than any was. Scale and penalty have the least error when each course is
    left out in turn.

    Args:
        known: (m, columns) of courses that go on.
        values: (m, targets) of them.
        asked: (s, columns) of those that do not.
    """
    mean = values.mean(axis=0)
    rest = values - mean
    length, ridge = min(
        product(LENGTHS, RIDGES),
        key=lambda one: _left_out(matern(known / one[0], known / one[0]), rest, one[1]),
    )
    gram = matern(known / length, known / length) + ridge * np.eye(len(known))
    return np.asarray(mean + matern(asked / length, known / length) @ np.linalg.solve(gram, rest))


def _left_out(gram: Floats, values: Floats, ridge: float) -> float:
    """Return the squared error of every course told by the others."""
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    missed = (inverse @ values) / np.diag(inverse)[:, None]
    return float((missed**2).sum())
