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
    clock: JobClock | None = None  # which asynchronous algorithms ask; None: one second each

    def value(self, name: str, default: float) -> PerClient:
        """Return a setting of the course, for all clients and for those that differ."""
        base = self.configuration.get(name, default)
        own = (item for item in self.own.get(name, ()) if item[1] != base)
        return PerClient(base, tuple(own))

    @cached_property
    def own(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Settings for one client alone: (client, value) pairs by name, sorted."""
        found: dict[str, list[tuple[int, float]]] = {}
        for key in (key for key in self.configuration if "@" in key):
            name, _, client = key.rpartition("@")
            found.setdefault(name, []).append((int(client), self.configuration[key]))
        return {name: sorted(pairs) for name, pairs in found.items()}


@dataclass(frozen=True)
class PerClient:
    """A setting that some clients may have differently."""

    base: float  # value of all other clients
    own: tuple[tuple[int, float], ...] = ()  # (client, value) of the clients that differ, sorted


class Needs(NamedTuple):
    """What decides which courses train beside a course, and on what."""

    seed: int  # which federation it trains on
    architecture: tuple[tuple[str, float], ...]  # (name, value) pairs that shape the model
    batch_size: PerClient  # samples per minibatch
    num_epochs: PerClient  # local epochs per round
    num_sampled: int  # clients per round


def needs(course: Course, num_clients: int, architecture: Sequence[str] = ()) -> Needs:
    """Return what decides which courses train beside a course."""
    given = dict(course.configuration)
    for name in architecture:
        if name not in given:
            raise InvalidArgumentError(f"a configuration needs {name!r}, got {given}")
    return Needs(
        course.seed,
        tuple((name, given[name]) for name in architecture),
        course.value("batch_size", FULL_BATCH),
        course.value("step_size", 1),
        Fidelity(0, course.client_sample_rate).sampled_clients(num_clients),
    )
