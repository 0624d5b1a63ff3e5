"""Packing courses into blocks that train in lockstep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.schema import Fidelity

SLOTS = 24
"""Courses per block. Fixed, and a multiple of every vector width, so that the arithmetic of a
course is the same in a full block and in one padded with idle slots."""


@dataclass(frozen=True)
class Course:
    """One federated course.

    Attributes:
        configuration: `learning_rate`, `weight_decay`, `batch_size`, `step_size` (local epochs)
            and what the algorithm's server update reads.
        client_sample_rate: fraction of clients sampled per round.
        seed: seed of data split, partition, initialisation, client sampling and minibatches.
    """

    configuration: Mapping[str, float]
    client_sample_rate: float
    seed: int


@dataclass(frozen=True, eq=False)
class Block:
    """Up to `SLOTS` courses that sample as many clients and take as many local epochs.

    Attributes:
        courses: (m,) positions of the courses in the batch, m <= SLOTS.
        num_epochs: local epochs per round.
        num_sampled: clients per round.
    """

    courses: NDArray[np.int64]
    num_epochs: int
    num_sampled: int


@dataclass(frozen=True)
class Group:
    """Blocks that share a federation and a batch size, hence their minibatches."""

    seed: int
    batch_size: int
    blocks: tuple[Block, ...]


def pack(courses: Sequence[Course], num_clients: int) -> list[Group]:
    """Sort courses into groups and blocks; the order of `courses` inside a block is kept."""
    members: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for position, course in enumerate(courses):
        group = (course.seed, int(course.configuration["batch_size"]))
        block = (
            int(course.configuration["step_size"]),
            Fidelity(0, course.client_sample_rate).sampled_clients(num_clients),
        )
        members[group][block].append(position)
    return [
        Group(seed, batch_size, tuple(_blocks(members[seed, batch_size])))
        for seed, batch_size in sorted(members)
    ]


def _blocks(members: Mapping[tuple[int, int], list[int]]) -> list[Block]:
    return [
        Block(np.array(positions[start : start + SLOTS]), epochs, sampled)
        for (epochs, sampled), positions in sorted(members.items())
        for start in range(0, len(positions), SLOTS)
    ]
