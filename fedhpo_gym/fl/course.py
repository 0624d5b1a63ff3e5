"""What a course is, and what decides which courses train beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity

FULL_BATCH = 2**31 - 1
"""Batch size of courses whose configuration names none: one step takes the whole training split."""


class JobClock(Protocol):
    """How long clients take to receive the model, train it and report, each on its own.

    Attributes:
        server_s: seconds of an aggregation.
    """

    @property
    def server_s(self) -> float: ...

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds until a client is done, and whether its report then arrives.

        Args:
            seed: of the federation.
            number: jobs of the course that were begun before.
            client: who does it.
            start_s: when it is begun.
        """


@dataclass(frozen=True)
class Course:
    """One federated course.

    Attributes:
        configuration: `learning_rate`, `weight_decay`, `batch_size` (absent: full batches),
            `step_size` (local epochs) and what model and algorithm read. An entry `name@i` is the
            value of `name` for client i alone.
        client_sample_rate: fraction of clients sampled per round.
        seed: seed of data split, partition, initialisation, client sampling and minibatches.
        clock: how long clients take, which asynchronous algorithms ask; None: one second each.
    """

    configuration: Mapping[str, float]
    client_sample_rate: float
    seed: int
    clock: JobClock | None = None

    def value(self, name: str, default: float) -> PerClient:
        """Return a setting of the course, for all clients and for those that differ."""
        base = self.configuration.get(name, default)
        own = (item for item in self.own.get(name, ()) if item[1] != base)
        return PerClient(base, tuple(own))

    @cached_property
    def own(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Settings for one client alone: (client, value) pairs by name, sorted."""
        found: dict[str, list[tuple[int, float]]] = {}
        for key in filter(_is_own, self.configuration):
            name, _, client = key.rpartition("@")
            found.setdefault(name, []).append((int(client), self.configuration[key]))
        return {name: sorted(pairs) for name, pairs in found.items()}


@dataclass(frozen=True)
class PerClient:
    """A setting that some clients may have differently.

    Attributes:
        base: value of all other clients.
        own: (client, value) of the clients that differ, sorted.
    """

    base: float
    own: tuple[tuple[int, float], ...] = ()

    def of(self, client: int) -> float:
        """Return the value for one client."""
        return dict(self.own).get(client, self.base)


class Needs(NamedTuple):
    """What decides which courses train beside a course, and on what.

    Attributes:
        seed: which federation it trains on.
        architecture: (name, value) pairs of the configuration that shape the model.
        batch_size: samples per minibatch.
        num_epochs: local epochs per round.
        num_sampled: clients per round.
    """

    seed: int
    architecture: tuple[tuple[str, float], ...]
    batch_size: PerClient
    num_epochs: PerClient
    num_sampled: int


def needs(course: Course, num_clients: int, architecture: Sequence[str] = ()) -> Needs:
    """Return what decides which courses train beside a course."""
    return Needs(
        course.seed,
        tuple((name, _required(course, name)) for name in architecture),
        course.value("batch_size", FULL_BATCH),
        course.value("step_size", 1),
        Fidelity(0, course.client_sample_rate).sampled_clients(num_clients),
    )


def _required(course: Course, name: str) -> float:
    if name not in course.configuration:
        given = dict(course.configuration)
        raise InvalidArgumentError(f"a configuration needs {name!r}, got {given}")
    return course.configuration[name]


def _is_own(key: str) -> bool:
    return "@" in key
