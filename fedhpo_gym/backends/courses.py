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
    """What some rounds of N courses brought; entries of clients that did not train are 0.

    Attributes:
        metrics: (N, clients, splits, metrics) after the last round; of the last finite model where
            a course diverged.
        diverged: (N,) whether a course has left the finite numbers, now or before.
        sampled: (N, rounds, clients) who trained.
        update_norm: (N, rounds, clients) Euclidean norm of a client's update.
        alignment: (N, rounds, clients) cosine of a client's update and the round's mean update.
        before: (N, rounds, clients, splits, metrics) of the model a client received.
        after: likewise, of the model it made of it; both are zeros unless asked for.
        seconds: (N, rounds) simulated seconds of aggregations where training decides them, as
            asynchronous algorithms do; None where the system's clock does.
        move_product: (N,) inner product of how the global model moved over these rounds and over
            those advanced before; 0 where there were none. None unless asked for.
    """

    metrics: Metrics
    diverged: NDArray[np.bool_]
    sampled: NDArray[np.bool_]
    update_norm: NDArray[np.float32]
    alignment: NDArray[np.float32]
    before: Metrics
    after: Metrics
    seconds: NDArray[np.float64] | None = None
    move_product: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class CourseSnapshot:
    """Where a course stands.

    Attributes:
        instance: index of the instance it is on.
        state: what the courses that made the snapshot need to continue; opaque to everybody else.
        move: how the model moved last, where that is reported; opaque, too.
    """

    instance: int
    state: object
    move: object = None


class Courses(Protocol):
    """N federated courses of one task, each on an instance, that take rounds together.

    Positions count courses from 0, instances those the courses were made with. A course gives the
    same numbers whatever the others do.

    Attributes:
        name: what trains them, as in `gymnasium.make(..., backend=name)`.
    """

    name: ClassVar[str] = "raw"

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
        """Go back to a snapshot of any course of the same task and instances.

        Raises:
            InvalidArgumentError: the snapshot is of other courses than these.
        """
