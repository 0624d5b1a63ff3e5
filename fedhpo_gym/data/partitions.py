"""How a data set becomes the clients of a federation: one function per kind, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.data import Dataset
from fedhpo_gym.data.federation import (
    Federation,
    make_federation,
    make_skewed_federation,
    make_unseen_federation,
    make_user_federation,
)
from fedhpo_gym.data.graph_federations import make_graph_federation, make_hetero_federation

Partition = Callable[[Dataset, int, int, float, str], Federation]
"""Returns the federation of data set, seed, number of clients, alpha and preprocessing."""


def _by_user(train: float, val: float) -> Partition:
    def split(
        dataset: Dataset, seed: int, num_clients: int, alpha: float, preprocessing: str
    ) -> Federation:
        del alpha  # the data say who is who
        return make_user_federation(dataset, seed, preprocessing, (train, val), num_clients)

    return split


def _unseen(
    dataset: Dataset, seed: int, num_clients: int, alpha: float, preprocessing: str
) -> Federation:
    del alpha  # the data say who is who
    return make_unseen_federation(dataset, seed, num_clients, preprocessing)


def _by_community(
    dataset: Dataset, seed: int, num_clients: int, alpha: float, preprocessing: str
) -> Federation:
    del alpha, preprocessing  # communities have no concentration; features stay as published
    return make_graph_federation(dataset, seed, num_clients)


def _by_task(
    dataset: Dataset, seed: int, num_clients: int, alpha: float, preprocessing: str
) -> Federation:
    del num_clients, alpha, preprocessing  # every client has its own problem
    return make_hetero_federation(dataset, seed)


PARTITIONS: Mapping[str, Partition] = MappingProxyType(
    {
        "lda": make_federation,
        "user": _by_user(0.6, 0.2),
        "user-80-10-10": _by_user(0.8, 0.1),
        "unseen": _unseen,
        "skewed": make_skewed_federation,
        "community": _by_community,
        "task": _by_task,
    }
)


@checked_types
def get_partition(name: str) -> Partition:
    """Return a partition by name."""
    require_known("partition", name, PARTITIONS)
    return PARTITIONS[name]
