"""Federations of graphs: one graph partitioned by communities, or one set of graphs per client.

`PARTITIONS` names both constructors, and the graph neural networks of the engine train on their
federations. Clients of a partitioned graph have no edges between them. All adjacency matrices are
normalised with self loops (Kipf and Welling, 2017), and products with features are cached.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import cache
from fedhpo_gym.data.federation import Federation, split_sizes
from fedhpo_gym.data.graph_sets import GraphSet, GraphSets
from fedhpo_gym.data.graphs import NodeGraph, from_dense, matmul, normalised_adjacency
from fedhpo_gym.data.records import Dataset, SparseRows

DELTA = 20


@dataclass(frozen=True, eq=False)
class GraphFederation(Federation):
    """The graph of all clients under one seed; `features` are the dense node features."""

    graph: NodeGraph  # the whole graph, edges between clients included
    owner: Integers  # (n,) int64 client of each node
    edges: Integers  # (2, m) int64 edges inside clients, in node numbers of the whole graph

    @cached_property
    def adjacency(self) -> SparseRows:
        """(n, n) normalised adjacency with self loops, of the edges inside clients."""
        return normalised_adjacency(self.edges, len(self.labels))

    def client_nodes(self, client: int) -> Integers:
        """Return the (n_i,) ascending node numbers of a client."""
        return np.flatnonzero(self.owner == client)

    def client_edges(self, client: int) -> Integers:
        """Return the (2, m_i) edges inside a client, in node numbers of the whole graph."""
        return self.edges[:, self.owner[self.edges[0]] == client]

    def client_adjacency(self, client: int) -> SparseRows:
        """Return the (n_i, n_i) normalised adjacency of a client, in its local node indices."""
        nodes = self.client_nodes(client)
        return normalised_adjacency(np.searchsorted(nodes, self.client_edges(client)), len(nodes))

    @cached_property
    def propagated(self) -> SparseRows:
        """(n, d) normalised adjacency times features: the input of the first graph convolution."""
        return matmul(self.adjacency, from_dense(self.features[np.arange(len(self.labels))]))


def make_graph_federation(
    dataset: Dataset, seed: int, num_clients: int = 5, delta: int = DELTA
) -> GraphFederation:
    """Return a federation of communities of a graph; each client's nodes are split 60/20/20."""
    if not isinstance(dataset, NodeGraph):
        raise InvalidArgumentError(f"`dataset` must be a graph, got {dataset.name}")
    nodes_by_client = place_communities(louvain_communities(dataset, seed), num_clients, delta)
    owner = np.empty(len(dataset.labels), dtype=np.int64)
    for client, nodes in enumerate(nodes_by_client):
        owner[nodes] = client
    rng = stream(seed, "split")
    cuts = [
        [math.floor(share * len(nodes) + 1e-9) for share in (0.6, 0.8)] for nodes in nodes_by_client
    ]
    clients = tuple(
        tuple(np.split(rng.permutation(nodes), ends_of_splits))
        for nodes, ends_of_splits in zip(nodes_by_client, cuts, strict=True)
    )
    ends = owner[dataset.edges]
    return GraphFederation(
        features=dataset.features[np.arange(len(owner))].astype(np.float32),
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        clients=clients,
        seed=int(seed),
        graph=dataset,
        owner=owner,
        edges=dataset.edges[:, ends[0] == ends[1]],
    )


def louvain_communities(graph: NodeGraph, seed: int) -> list[Integers]:
    """Return communities of high modularity (Blondel et al., J. Stat. Mech. P10008, 2008)."""
    networkx: Any = cache.import_optional("networkx", "graphs")
    network = networkx.Graph()
    network.add_nodes_from(range(len(graph.labels)))
    network.add_edges_from(graph.edges.T.tolist())
    louvain_seed = int(stream(seed, "partition").integers(2**31))
    communities = networkx.community.louvain_communities(network, seed=louvain_seed)
    return sorted(
        (np.array(sorted(nodes), dtype=np.int64) for nodes in communities), key=lambda c: c[0]
    )


def place_communities(
    communities: Iterable[Integers], num_clients: int, delta: int = DELTA
) -> list[Integers]:
    """Assign communities to clients of almost equal size, the largest first.

    As in FederatedScope, communities of more than n // K - delta nodes are cut into pieces of that
    size. Clients get the pieces in turn, and one that would exceed n // K + delta is skipped. If a
    piece fits nowhere (FederatedScope would loop forever), the client with the most free space gets
    a part of it, and the other part is assigned next.
    """
    communities = list(communities)
    share = sum(map(len, communities)) // num_clients if num_clients >= 1 else 0
    if not 1 <= delta < share:
        raise InvalidArgumentError(
            f"delta must be at least 1 and less than the {share} nodes of an average client, got "
            f"{delta!r} for num_clients={num_clients!r}; use fewer clients or another delta"
        )
    size = share - delta
    pieces = [
        nodes[begin : begin + size] for nodes in communities for begin in range(0, len(nodes), size)
    ]
    pieces.sort(key=len, reverse=True)
    clients: list[list[Integers]] = [[] for _ in range(num_clients)]
    free = np.full(num_clients, share + delta)
    next_client = 0
    for piece in pieces:
        unplaced = piece
        while len(unplaced):
            candidates = (*range(next_client, num_clients), *range(next_client))
            fits = [client for client in candidates if free[client] >= len(unplaced)]
            client = fits[0] if fits else int(free.argmax())
            placed, unplaced = unplaced[: free[client]], unplaced[free[client] :]
            clients[client].append(placed)
            free[client] -= len(placed)
            next_client = (client + 1) % num_clients
    return [np.sort(np.concatenate(parts)) for parts in clients]


@dataclass(frozen=True, eq=False)
class HeteroFederation(Federation):
    """One set of graphs per client, each with different features and classes; rows are graphs."""

    sets: tuple[GraphSet, ...]

    @cached_property
    def first(self) -> Integers:
        """(clients + 1,) index of each client's first graph, and the number of all graphs."""
        return np.cumsum([0, *(len(graph_set.labels) for graph_set in self.sets)])

    @property
    def num_features(self) -> tuple[int, ...]:
        """Number of node features of each client."""
        return tuple(graph_set.node_features.num_columns for graph_set in self.sets)

    @cached_property
    def adjacency(self) -> tuple[SparseRows, ...]:
        """Per client the (N_i, N_i) normalised adjacency of all its graphs: block-diagonal."""
        return tuple(
            normalised_adjacency(graph_set.edges, len(graph_set.node_features))
            for graph_set in self.sets
        )

    @cached_property
    def propagated(self) -> tuple[SparseRows, ...]:
        """Per client (N_i, d_i) normalised adjacency times node features."""
        pairs = zip(self.adjacency, self.sets, strict=True)
        return tuple(matmul(adjacency, graph_set.node_features) for adjacency, graph_set in pairs)


def make_hetero_federation(dataset: Dataset, seed: int) -> HeteroFederation:
    """Return a federation with one set of graphs per client, split 80/10/10 at random."""
    if not isinstance(dataset, GraphSets):
        raise InvalidArgumentError(
            f"`dataset` must consist of sets of graphs, one per client, got {dataset.name}"
        )
    clients, first = [], 0
    for client, graph_set in enumerate(dataset.sets):
        order = first + stream(seed, "split", client).permutation(len(graph_set.labels))
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
