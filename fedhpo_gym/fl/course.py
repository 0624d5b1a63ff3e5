"""Records of courses: configuration, batch key, state and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.space.per_client import split_clients

FULL_BATCH = 2**31 - 1
"""Batch size of courses whose configuration names none: one step takes the whole training split."""


class TrainingClock(Protocol):
    """How long clients take to receive the model, train it and report, each on its own."""

    @property
    def server_s(self) -> float:
        """Seconds of an aggregation."""

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds until a client's job is done, and whether its report arrives."""


@dataclass(frozen=True)
class Course:
    """One federated course."""

    configuration: Mapping[str, float]  # `name@i` is the value of `name` for client i alone
    client_sample_rate: float  # fraction of clients sampled per round
    seed: int  # seed of data split, partition, initialisation, client sampling and minibatches
    clock: TrainingClock | None = None  # which asynchronous algorithms ask; None: one second each

    def value(self, name: str, default: float) -> PerClient:
        """Return a setting of the course, for all clients and for those that differ."""
        base = self.configuration.get(name, default)
        return PerClient(base, tuple([pair for pair in self.own.get(name, ()) if pair[1] != base]))

    @cached_property
    def own(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Settings for one client alone: (client, value) pairs by name, sorted."""
        pairs: dict[str, list[tuple[int, float]]] = {}
        for client, values in split_clients(self.configuration)[1].items():
            for name, value in values.items():
                pairs.setdefault(name, []).append((client, value))
        return {name: sorted(values) for name, values in pairs.items()}


class PerClient(NamedTuple):
    """A setting that some clients may have differently."""

    base: float  # value of all other clients
    own: tuple[tuple[int, float], ...] = ()  # (client, value) of the clients that differ, sorted


class BatchKey(NamedTuple):
    """What decides which courses train beside a course, and on what."""

    seed: int  # which federation it trains on
    architecture: tuple[tuple[str, float], ...]  # (name, value) pairs that shape the model
    batch_size: PerClient  # samples per minibatch
    num_epochs: PerClient  # local epochs per round
    num_sampled: int  # clients per round


def batch_key(course: Course, num_clients: int, architecture: Sequence[str] = ()) -> BatchKey:
    """Return what decides which courses train beside a course."""
    configuration = course.configuration
    for name in architecture:
        if name not in configuration:
            raise InvalidArgumentError(f"a configuration needs {name!r}, got {dict(configuration)}")
    return BatchKey(
        course.seed,
        tuple((name, configuration[name]) for name in architecture),
        course.value("batch_size", FULL_BATCH),
        course.value("step_size", 1),
        Fidelity(0, course.client_sample_rate).sampled_clients(num_clients),
    )


WORST = np.array([np.finfo(np.float32).max, 0.0, 0.0], dtype=np.float32)
"""Loss, accuracy and macro-F1 of a course that never was finite."""
MAX_NORM = 1e18
"""Norms of updates are reported up to this; those of a diverging client have no bound."""
MAX_LOCAL_BYTES = 2**26
"""Local parameters that are trained at once; more clients than fit train one part after the other,
and so memory does not grow with their number."""


@dataclass(frozen=True, eq=False)
class Curves:
    """Learning curves of a batch of courses."""

    metrics: NDArray[np.float32]  # (courses, evaluated rounds, clients, splits, metrics) float32
    rounds: NDArray[np.int64]  # (evaluated rounds,) rounds since the courses stood
    # (courses,) rounds; 0 for none; metrics stay the last finite ones.
    diverged_at: NDArray[np.int64]
    feedback: ClientFeedback | None = None  # of every round; None unless observed


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


@dataclass(frozen=True, eq=False)
class Case:
    """Courses of one family that differ in all that decides how they are grouped."""

    family: str  # name of the model in `MODELS`
    model: type[Model]
    federation: Federation  # its data
    courses: tuple[Course, ...]  # what is trained
