"""A federation: one data set, split and partitioned over clients, as one seed sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.fl.datasets import Dataset
from fedhpo_gym.fl.partition import lda_partition, split_sizes
from fedhpo_gym.schema import SPLITS
from fedhpo_gym.seeding import stream

PREPROCESSINGS = ("label_encoded", "standardized")

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of all clients under one seed.

    Attributes:
        features: (n, d) float32.
        labels: (n,) int64.
        num_classes: number of classes.
        clients: `clients[i][s]` are the row indices of client i in split s (train, val, test).
        seed: the seed that split and partitioned the data set.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    num_classes: int
    clients: tuple[tuple[Indices, ...], ...]
    seed: int

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """(clients, splits) number of samples."""
        return np.array([[len(rows) for rows in client] for client in self.clients])


def make_federation(
    dataset: Dataset,
    seed: int,
    num_clients: int = 5,
    alpha: float = 0.5,
    preprocessing: str = "label_encoded",
) -> Federation:
    """Split a data set 80/10/10 and partition each split over clients by LDA, independently.

    As in the runs behind the original tables, the seed of a course also draws its split and its
    partition.

    Args:
        dataset: the data.
        seed: seed of the split and the partition.
        num_clients: number of clients.
        alpha: concentration of the label distribution over clients.
        preprocessing: "label_encoded" leaves features as they are, as the paper did;
            "standardized" gives them zero mean and unit variance over the training split.

    Raises:
        InvalidArgumentError: an argument is out of its range; see `lda_partition`.
    """
    if preprocessing not in PREPROCESSINGS:
        raise InvalidArgumentError(
            f"preprocessing must be one of {PREPROCESSINGS}, got {preprocessing!r}"
        )
    order = stream(seed, "split").permutation(len(dataset.labels))
    cuts = np.cumsum(split_sizes(len(order)))[:-1]
    splits = np.split(order, cuts)
    rng = stream(seed, "partition")
    parts = [
        [rows[part] for part in lda_partition(dataset.labels[rows], num_clients, alpha, rng)]
        for rows in splits
    ]
    clients = tuple(tuple(parts[s][i] for s in range(len(SPLITS))) for i in range(num_clients))
    features = dataset.features[np.arange(len(order))]
    if preprocessing == "standardized":
        train = features[splits[0]]
        scale = train.std(axis=0)
        features = (features - train.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    return Federation(
        features.astype(np.float32), dataset.labels, dataset.num_classes, clients, int(seed)
    )
