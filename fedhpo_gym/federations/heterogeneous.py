"""A federation whose clients solve different problems: each has a set of graphs of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets.graphs.graph_sets import GraphSet
from fedhpo_gym.datasets.graphs.graph_tasks import GraphSets
from fedhpo_gym.datasets.graphs.sparse import matmul, normalised_adjacency
from fedhpo_gym.datasets.records import Dataset, SparseRows
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.federations.lda import split_sizes
from fedhpo_gym.seeding import stream

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeteroFederation(Federation):
    """Graph sets that share neither features nor classes, one per client, under one seed.

    The rows of `clients` are graphs, numbered through all sets; `num_classes` is that of the
    client with most.

    Attributes:
        sets: the graphs of each client.
    """

    sets: tuple[GraphSet, ...]

    @cached_property
    def first(self) -> Indices:
        """(clients + 1,) number of each client's first graph, and of all graphs."""
        return np.cumsum([0, *(len(own.labels) for own in self.sets)])

    @property
    def classes(self) -> tuple[int, ...]:
        """Number of classes of each client."""
        return tuple(own.num_classes for own in self.sets)

    @property
    def num_features(self) -> tuple[int, ...]:
        """Width of a node's features of each client."""
        return tuple(own.node_features.num_columns for own in self.sets)

    @cached_property
    def adjacency(self) -> tuple[SparseRows, ...]:
        """Per client the (N_i, N_i) normalised adjacency of all its graphs: block-diagonal."""
        return tuple(normalised_adjacency(own.edges, len(own.node_features)) for own in self.sets)

    @cached_property
    def propagated(self) -> tuple[SparseRows, ...]:
        """Per client (N_i, d_i) normalised adjacency times node features."""
        pairs = zip(self.adjacency, self.sets, strict=True)
        return tuple(matmul(adjacency, own.node_features) for adjacency, own in pairs)


def make_hetero_federation(dataset: Dataset, seed: int) -> HeteroFederation:
    """Give each client one set of graphs, split 80/10/10 at random.

    Args:
        dataset: sets of graphs, one per client.
        seed: seed of the splits; a client's split depends on no other client.

    Raises:
        InvalidArgumentError: the data set does not consist of sets of graphs.
    """
    if not isinstance(dataset, GraphSets):
        raise InvalidArgumentError(
            f"`dataset` must consist of sets of graphs, one per client, got {dataset.name}"
        )
    clients, first = [], 0
    for client, own in enumerate(dataset.sets):
        order = first + stream(seed, "split", client).permutation(len(own.labels))
        clients.append(tuple(np.split(order, np.cumsum(split_sizes(len(order)))[:-1])))
        first += len(order)
    return HeteroFederation(
        dataset.features,
        dataset.labels,
        dataset.num_classes,
        tuple(clients),
        int(seed),
        dataset.sets,
    )
