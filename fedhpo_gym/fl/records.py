"""What is known of courses: their curves, what clients reported, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import METRICS, SPLITS

WORST = np.array([np.finfo(np.float32).max, 0.0, 0.0], dtype=np.float32)
"""Loss, accuracy and macro-F1 of a course that never was finite."""
MAX_NORM = 1e18
"""Norms of updates are reported up to this; those of a diverging client have no bound."""
MAX_LOCAL_BYTES = 2**26
"""Local parameters that are trained at once; more clients than fit train one part after the other,
and so memory does not grow with their number."""


@dataclass(frozen=True, eq=False)
class Feedback:
    """What the clients reported; entries of clients that did not train are 0."""

    sampled: NDArray[np.bool_]  # (courses, rounds, clients) which clients trained
    before: NDArray[np.float32]  # (courses, rounds, clients, splits, metrics) of the received
    after: NDArray[np.float32]  # likewise, of the model it made of it
    update_norm: NDArray[np.float32]  # (courses, rounds, clients) Euclidean norm of what is trained
    alignment: NDArray[np.float32]  # (courses, rounds, clients) cosine with the round's mean update
    seconds: NDArray[np.float64]  # (courses, rounds) simulated, of asynchronous algorithms


def empty_feedback(size: tuple[int, int, int]) -> Feedback:
    """Return the feedback of (courses, rounds, clients) in which nobody has reported."""
    metrics = (*size, len(SPLITS), len(METRICS))
    return Feedback(
        np.zeros(size, dtype=np.bool_),
        np.zeros(metrics, dtype=np.float32),
        np.zeros(metrics, dtype=np.float32),
        np.zeros(size, dtype=np.float32),
        np.zeros(size, dtype=np.float32),
        np.zeros(size[:2], dtype=np.float64),
    )


@dataclass(frozen=True, eq=False)
class Curves:
    """Learning curves of a batch of courses."""

    metrics: NDArray[np.float32]  # (courses, evaluated rounds, clients, splits, metrics) float32
    rounds: NDArray[np.int64]  # (evaluated rounds,) rounds since the courses stood
    # (courses,) rounds; 0 for none; metrics stay the last finite ones.
    diverged_at: NDArray[np.int64]
    feedback: Feedback | None = None  # of every round; None unless observed


@dataclass(frozen=True, eq=False)
class CourseState:
    """What training has made of one course."""

    parameters: Mapping[str, Any]  # global parameters, (own, ..) each
    server: Mapping[str, Any]  # the server's state
    personal: Mapping[str, Any]  # (.., clients, ..) parameters that stay with the clients
    round: int  # finished rounds
    diverged_at: int  # round in which the course left the finite numbers; 0 if it did not
    # (clients, splits, metrics) of its last finite evaluation.
    last: NDArray[np.float32] | None = None
    in_flight: object = None  # what asynchronous training has begun
    # (.., clients, ..) control variates that the clients keep.
    variates: Mapping[str, Any] = field(default_factory=dict)
