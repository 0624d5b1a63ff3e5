"""Which courses share matrices among their clients, and which clients then train together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import Algorithm
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.models import Parameters, TorchModel
from fedhpo_gym.fl.shared import worth_sharing

ROWS_TOGETHER = 256
"""Rows of minibatches that clients of one course train together, at most: more would gain little,
and feature maps need memory."""
MAX_KEPT = 2**13
"""Rows that corrections of clients that train together hold, at most."""
MORE = 8
"""How many times more both are where a model takes the step of all items together."""


def shared_names(
    model: TorchModel, algorithm: Algorithm, personal: frozenset[str]
) -> frozenset[str]:
    """Return the parameters that need not be written for every client."""
    if algorithm.keeps_copy or algorithm.reads_uploads:
        return frozenset()
    return model.shareable - personal


def sharing_courses(
    rows: NDArray[np.int64], names: frozenset[str], parameters: Parameters
) -> NDArray[np.bool_]:
    """Return (courses,): which share those parameters, by what their own clients cost.

    It depends neither on the courses beside, nor on who is sampled.

    Args:
        rows: (courses,) rows that the largest client of a course trains on in a round.
        names: of the parameters.
        parameters: all of them, (own, rows, ..) each.
    """
    found = np.full(len(rows), bool(names))
    for name in names:
        found &= worth_sharing(rows, parameters[name].shape[2:])
    return found


def split_cohorts(items: Items, rows: NDArray[np.int64], together: bool = False) -> Iterator[Items]:
    """Yield the items by course, and of each as many clients as train together.

    Args:
        items: some items.
        rows: (courses,) rows that the largest client of a course trains on in a round.
        together: see `TorchModel.together`.
    """
    more = MORE if together else 1
    for course in np.unique(items.course).tolist():
        own = np.flatnonzero(items.course == course)
        width = int(items.width[own[0]])
        count = min(ROWS_TOGETHER * more // width, MAX_KEPT * more // int(rows[course]))
        for start in range(0, len(own), max(count, 1)):
            yield items.take(own[start : start + max(count, 1)])
