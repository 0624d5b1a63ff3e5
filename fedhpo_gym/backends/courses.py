"""The only door to the engine: the courses of a task, trained once or kept running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.space import Value

Configuration = Mapping[str, Value]

Metrics = NDArray[np.float32]
"""(..., clients, splits, metrics); the last two axes follow `SPLITS` and `METRICS`."""


@dataclass(frozen=True, eq=False)
class Report:
    """What some rounds of N courses brought; entries of clients that did not train are 0."""

    metrics: Metrics  # (N, clients, splits, metrics) after the last round, of the last finite model
    diverged: NDArray[np.bool_]  # (N,) whether a course has left the finite numbers, now or before
    sampled: NDArray[np.bool_]  # (N, rounds, clients) who trained
    update_norm: NDArray[np.float32]  # (N, rounds, clients) Euclidean norm of a client's update
    alignment: NDArray[np.float32]  # (N, rounds, clients) cosine of an update and the round's mean
    before: Metrics  # (N, rounds, clients, splits, metrics) of the model a client received
    after: Metrics  # likewise, of the model it made of it; both are zeros unless asked for
    # (N, rounds) of asynchronous aggregations; None where the clock decides.
    seconds: NDArray[np.float64] | None = None
    # (N,) with the moves before; None unless asked for.
    move_product: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class CourseSnapshot:
    """Where a course stands."""

    instance: int  # index of the instance it is on
    state: object  # what the courses that made it need to continue; opaque to all others
    move: object = None  # how the model moved last, where that is reported; opaque, too


class Courses(Protocol):
    """N federated courses of one task, each on an instance, that take rounds together."""

    name: ClassVar[str] = "raw"  # what trains them, as in `gymnasium.make(..., backend=name)`

    @property
    def fingerprint(self) -> str:
        """Digest of everything that numbers depend on, for run records."""
        return ""

    def describe(self) -> dict[str, object]:
        """Return what `reset` says of what trains them, as plain data."""
        return {}

    def close(self) -> None:
        """Give back what outlives an object, such as processes; courses can go on after it."""

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """(N, clients, splits) samples of the instances the courses are on."""

    @property
    def most_samples(self) -> NDArray[np.int64]:
        """(clients,) the most training samples a client has on any instance."""

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        """Put some courses at round 0 of other instances, or of the same ones."""

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        """Return (positions, clients, splits, metrics) of the untrained models of some courses."""

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        """Set the hyperparameters of all courses from here on."""

    def sampled(self, rounds: int) -> NDArray[np.bool_]:
        """Return (N, clients): who will train in at least one of the next rounds."""

    def advance(self, rounds: int) -> Report:
        """Train all courses for some rounds and evaluate them after the last."""

    def snapshot(self, position: int) -> CourseSnapshot:
        """Return where a course stands; it can be restored any number of times."""

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        """Go back to a snapshot of any course of the same task and instances."""
