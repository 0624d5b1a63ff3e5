"""Packing courses into blocks that train in lockstep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.schema import Fidelity

FULL_BATCH = 2**31 - 1
"""Batch size of courses whose configuration names none: one step takes the whole training split."""


@dataclass(frozen=True)
class Course:
    """One federated course.

    Attributes:
        configuration: `learning_rate`, `weight_decay`, `batch_size` (absent: full batches),
            `step_size` (local epochs) and what model and algorithm read. An entry `name@i` is the
            value of `name` for client i alone.
        client_sample_rate: fraction of clients sampled per round.
        seed: seed of data split, partition, initialisation, client sampling and minibatches.
    """

    configuration: Mapping[str, float]
    client_sample_rate: float
    seed: int

    def value(self, name: str, default: float) -> PerClient:
        """Return a setting of the course, for all clients and for those that differ."""
        base = self.configuration.get(name, default)
        own = (
            (int(key.rpartition("@")[2]), value)
            for key, value in self.configuration.items()
            if key.startswith(f"{name}@") and value != base
        )
        return PerClient(base, tuple(sorted(own)))


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


@dataclass(frozen=True, eq=False)
class Block:
    """Courses that sample as many clients and take as many local epochs.

    Attributes:
        courses: (m,) positions of the courses in the batch; m is at most the model's slots.
        num_epochs: local epochs per round.
        num_sampled: clients per round.
    """

    courses: NDArray[np.int64]
    num_epochs: PerClient
    num_sampled: int


@dataclass(frozen=True)
class Group:
    """Blocks that share a federation, a model and batch sizes, hence their minibatches.

    Attributes:
        seed: seed of all courses.
        batch_size: samples per minibatch.
        architecture: (name, value) pairs of the configuration that shape the model.
        round: finished rounds of all courses.
        blocks: the blocks.
    """

    seed: int
    batch_size: PerClient
    architecture: tuple[tuple[str, float], ...]
    round: int
    blocks: tuple[Block, ...]


def pack(
    courses: Sequence[Course],
    num_clients: int,
    slots: int,
    architecture: Sequence[str] = (),
    rounds: Sequence[int] | None = None,
) -> list[Group]:
    """Sort courses into groups and blocks; the order of `courses` inside a block is kept.

    Args:
        courses: the courses.
        num_clients: clients of their federation.
        slots: courses per block.
        architecture: names of the settings that shape the model.
        rounds: finished rounds of each course; 0 by default.

    Raises:
        InvalidArgumentError: a configuration lacks what shapes the model.
    """
    members: dict[_Key, dict[tuple[PerClient, int], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for position, course in enumerate(courses):
        group = _Key(
            course.seed,
            course.value("batch_size", FULL_BATCH),
            tuple((name, _required(course, name)) for name in architecture),
            0 if rounds is None else rounds[position],
        )
        sampled = Fidelity(0, course.client_sample_rate).sampled_clients(num_clients)
        members[group][course.value("step_size", 1), sampled].append(position)
    return [Group(*key, tuple(_blocks(members[key], slots))) for key in sorted(members, key=repr)]


def _required(course: Course, name: str) -> float:
    if name not in course.configuration:
        given = dict(course.configuration)
        raise InvalidArgumentError(f"a configuration needs {name!r}, got {given}")
    return course.configuration[name]


class _Key(NamedTuple):
    """What the courses of a group share; see `Group`."""

    seed: int
    batch_size: PerClient
    architecture: tuple[tuple[str, float], ...]
    round: int


def _blocks(members: Mapping[tuple[PerClient, int], list[int]], slots: int) -> list[Block]:
    return [
        Block(np.array(positions[start : start + slots]), epochs, sampled)
        for (epochs, sampled), positions in sorted(members.items(), key=repr)
        for start in range(0, len(positions), slots)
    ]
