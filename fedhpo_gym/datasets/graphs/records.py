"""What a citation graph looks like once it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets.graphs.sparse import Edges, Labels, undirected
from fedhpo_gym.datasets.records import Dataset, SparseRows, seal
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeGraph(Dataset):
    """One graph; its samples are its nodes, and the labels are theirs.

    Attributes:
        edges: (2, m) int64, each undirected edge once, smaller end first, no self loops.
    """

    edges: Indices

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """See `Dataset.arrays`."""
        return (*super().arrays, self.edges)


@checked_types
def make_node_graph(
    name: str,
    features: SparseRows,
    labels: Labels,
    edges: Edges,
    num_classes: int,
) -> NodeGraph:
    """Build a graph from edges in any order, direction and number; its arrays become read-only.

    Raises:
        InvalidArgumentError: features and labels differ in length, a label is no class, or an
            edge ends outside the graph.
    """
    labels, edges = np.array(labels, dtype=np.int64), undirected(edges)
    if len(features) != len(labels):
        raise InvalidArgumentError(
            f"`features` and `labels` must have one entry per node, got {len(features)} and "
            f"{len(labels)}"
        )
    check_codes("labels", labels, num_classes)
    check_codes("edges", edges, len(labels))
    digest = seal(*features.arrays, labels, edges)
    return NodeGraph(name, features, labels, num_classes, digest, edges=edges)


def check_codes(what: str, codes: Indices, end: int) -> None:
    """Refuse integers outside 0..end-1.

    Raises:
        InvalidArgumentError: there is one; names it.
    """
    outside = codes[(codes < 0) | (codes >= end)]
    if outside.size:
        raise InvalidArgumentError(f"`{what}` must lie in 0..{end - 1}, got {int(outside[0])}")
