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
    """What the clients reported; entries of clients that did not train are 0.

    Attributes:
        sampled: (courses, rounds, clients) which clients trained.
        before: (courses, rounds, clients, splits, metrics) of the model a client received.
        after: likewise, of the model it made of it.
        update_norm: (courses, rounds, clients) Euclidean norm of a client's update of what is
            trained.
        alignment: (courses, rounds, clients) cosine of a client's update and the weighted mean of
            all updates of the round, in [-1, 1].
        seconds: (courses, rounds) simulated seconds of each round of an asynchronous algorithm;
            else 0.
    """

    sampled: NDArray[np.bool_]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    update_norm: NDArray[np.float32]
    alignment: NDArray[np.float32]
    seconds: NDArray[np.float64]


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
    """Learning curves of a batch of courses.

    Attributes:
        metrics: (courses, evaluated rounds, clients, splits, metrics) float32.
        rounds: (evaluated rounds,) rounds after which `metrics` were computed, counted from where
            the courses stood.
        diverged_at: (courses,) round in which a course left the finite numbers, 0 if it did not;
            its metrics stay those of its last finite model.
        feedback: what the clients reported of every round; None unless observed.
    """

    metrics: NDArray[np.float32]
    rounds: NDArray[np.int64]
    diverged_at: NDArray[np.int64]
    feedback: Feedback | None = None


@dataclass(frozen=True, eq=False)
class CourseState:
    """What training has made of one course.

    Parameters are arrays, or tensors where torch trains the model.

    Attributes:
        parameters: global parameters, (own, ..) each.
        server: the server's state.
        personal: (.., clients, ..) parameters that stay with the clients.
        round: finished rounds.
        diverged_at: round in which the course left the finite numbers; 0 if it did not.
        last: (clients, splits, metrics) of its last finite evaluation, if there was one.
        in_flight: what asynchronous training has begun; else None.
        variates: (.., clients, ..) control variates that the clients keep.
    """

    parameters: Mapping[str, Any]
    server: Mapping[str, Any]
    personal: Mapping[str, Any]
    round: int
    diverged_at: int
    last: NDArray[np.float32] | None = None
    in_flight: object = None
    variates: Mapping[str, Any] = field(default_factory=dict)
