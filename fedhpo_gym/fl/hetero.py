"""A federation whose clients solve different problems: each has a set of graphs of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.fl.datasets.graphs.graph_sets import GraphSet
from fedhpo_gym.fl.datasets.graphs.sparse import matmul, normalised_adjacency
from fedhpo_gym.fl.datasets.records import Dataset, SparseRows
from fedhpo_gym.fl.partition import split_sizes
from fedhpo_gym.seeding import stream

MINI_GRAPH_DC = ("BACE", "BBBP", "ClinTox", "ENZYMES", "PROTEINS")
"""The data sets of the five clients of the paper's heterogeneous problem, in their order."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeteroFederation:
    """Graph sets that share neither features nor classes, one per client, under one seed.

    Attributes:
        sets: the graphs of each client.
        clients: `clients[i][s]` are the graphs of client i in split s (train, val, test),
            numbered in its own set.
        seed: the seed that split the sets.
    """

    sets: tuple[GraphSet, ...]
    clients: tuple[tuple[Indices, ...], ...]
    seed: int

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @property
    def num_classes(self) -> tuple[int, ...]:
        """Number of classes of each client."""
        return tuple(own.num_classes for own in self.sets)

    @property
    def num_features(self) -> tuple[int, ...]:
        """Width of a node's features of each client."""
        return tuple(own.node_features.num_columns for own in self.sets)

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """(clients, splits) number of graphs."""
        return np.array([[len(rows) for rows in client] for client in self.clients])

    @cached_property
    def adjacency(self) -> tuple[SparseRows, ...]:
        """Per client the (N_i, N_i) normalised adjacency of all its graphs: block-diagonal."""
        return tuple(normalised_adjacency(own.edges, len(own.node_features)) for own in self.sets)

    @cached_property
    def propagated(self) -> tuple[SparseRows, ...]:
        """Per client (N_i, d_i) normalised adjacency times node features."""
        pairs = zip(self.adjacency, self.sets, strict=True)
        return tuple(matmul(adjacency, own.node_features) for adjacency, own in pairs)


def make_hetero_federation(datasets: Sequence[Dataset], seed: int) -> HeteroFederation:
    """Give each client one set of graphs, split 80/10/10 at random.

    Args:
        datasets: graph sets, one per client; see `MINI_GRAPH_DC`.
        seed: seed of the splits; a client's split depends on no other client.

    Raises:
        InvalidArgumentError: there is no data set, or one is no set of graphs.
    """
    sets = [dataset for dataset in datasets if isinstance(dataset, GraphSet)]
    if not sets or len(sets) != len(datasets):
        names = [dataset.name for dataset in datasets]
        raise InvalidArgumentError(f"`datasets` must be sets of graphs, at least one, got {names}")
    clients = []
    for client, own in enumerate(sets):
        order = stream(seed, "split", client).permutation(len(own.labels))
        cuts = np.cumsum(split_sizes(len(order)))[:-1]
        clients.append(tuple(np.split(order, cuts)))
    return HeteroFederation(tuple(sets), tuple(clients), int(seed))
