"""Sets of small graphs, each with one label: the record, and what all their sources share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.base import Source
from fedhpo_gym.datasets.graphs.files import PublicFile
from fedhpo_gym.datasets.graphs.records import check_codes
from fedhpo_gym.datasets.graphs.sparse import Edges, Labels, from_entries, undirected
from fedhpo_gym.datasets.records import Dataset, SparseRows, seal
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.typed import checked_types

Indices = NDArray[np.int64]
FOLDER = "mini_graph_dc"
LAYOUT = 1
"""Raised when `GraphSetSource.parse` returns other arrays for the same files."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSet(Dataset):
    """Many graphs, laid end to end; the samples are the graphs.

    `features` (G, d) are the sums of the node features of each graph: what a model sees that knows
    no edges.

    Attributes:
        node_features: (N, d) of all nodes.
        offsets: (G + 1,) int64; graph g has the nodes offsets[g]..offsets[g + 1].
        edges: (2, m) int64, each undirected edge once, smaller end first, no self loops.
    """

    node_features: SparseRows
    offsets: Indices
    edges: Indices

    @property
    def graph_of_node(self) -> Indices:
        """(N,) graph of each node."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """See `Dataset.arrays`."""
        return (*super().arrays, *self.node_features.arrays, self.offsets, self.edges)


@checked_types
def make_graph_set(
    name: str,
    node_features: SparseRows,
    offsets: Labels,
    edges: Edges,
    labels: Labels,
    num_classes: int,
) -> GraphSet:
    """Build a set from edges in any order, direction and number; its arrays become read-only.

    Raises:
        InvalidArgumentError: the offsets do not cover all nodes once, a label is no class, or an
            edge leaves its graph.
    """
    offsets, labels = np.array(offsets, dtype=np.int64), np.array(labels, dtype=np.int64)
    edges, num_nodes = undirected(edges), len(node_features)
    bounds = (offsets[0], offsets[-1]) == (0, num_nodes) and len(offsets) == len(labels) + 1
    if not bounds or (np.diff(offsets) < 0).any():
        raise InvalidArgumentError(
            f"`offsets` must ascend from 0 to the {num_nodes} nodes, one more than the "
            f"{len(labels)} labels, got {len(offsets)} from {offsets[0]} to {offsets[-1]}"
        )
    check_codes("labels", labels, num_classes)
    check_codes("edges", edges, num_nodes)
    graph = np.repeat(np.arange(len(labels)), np.diff(offsets))
    ends = graph[edges]
    if across := np.flatnonzero(ends[0] != ends[1]).tolist():
        raise InvalidArgumentError(
            f"`edges` must stay inside a graph, got {edges[:, across[0]].tolist()}"
        )
    features = _sums(node_features, graph, len(labels))
    parts = (*features.arrays, labels, *node_features.arrays, offsets, edges)
    return GraphSet(
        name, features, labels, num_classes, seal(*parts),
        node_features=node_features, offsets=offsets, edges=edges,
    )  # fmt: skip


def _sums(node_features: SparseRows, graph: Indices, num_graphs: int) -> SparseRows:
    """Return the (G, d) sums of the rows of each graph."""
    width = node_features.num_columns
    rows = np.repeat(graph, np.diff(node_features.indptr))
    places, where = np.unique(rows * width + node_features.indices, return_inverse=True)
    sums = np.bincount(where, weights=node_features.values, minlength=len(places))
    return from_entries(places // width, places % width, sums, (num_graphs, width))


@dataclass(frozen=True, kw_only=True)
class GraphSetSource(Source):
    """A set of graphs in public files.

    Attributes:
        num_features: width of a node's features.
        files: what it is read from.
    """

    num_features: int
    files: tuple[PublicFile, ...]

    @property
    def origin(self) -> str:
        """The address of the first file."""
        return self.files[0].url

    def read(self) -> GraphSet:
        """See `Source.read`; what was read once is kept as arrays in the user's cache."""
        paths = [file.local(self.repair) for file in self.files]
        arrays = cache.derived(
            f"{self.name}-{LAYOUT}", paths, lambda: self.parse(paths), self.repair
        )
        nodes = SparseRows(arrays["indptr"], arrays["indices"], arrays["values"], self.num_features)
        return make_graph_set(
            self.name, nodes, arrays["offsets"], arrays["edges"], arrays["labels"],
            self.num_classes,
        )  # fmt: skip

    @abstractmethod
    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        """Read the files, in the order of `files`.

        Returns:
            `indptr`, `indices`, `values` of the node features (`SparseRows`), and `offsets`,
            `edges`, `labels` as `make_graph_set` takes them.

        Raises:
            DamagedDataError: the files contradict each other.
            MissingDependencyError: the extra `graphs` is not installed.
        """

    def damaged(self, reason: str) -> DamagedDataError:
        """Build (not raise) the error for files that contradict each other."""
        return DamagedDataError(
            f"data set {self.name}: {reason}; delete its files and run `{self.repair}`"
        )


def pack(node_features: SparseRows, **others: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays that `GraphSetSource.parse` returns."""
    names = ("indptr", "indices", "values")
    return {**dict(zip(names, node_features.arrays, strict=True)), **others}
