"""Graph sets in the text format of the TU Dortmund collection: ENZYMES and PROTEINS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets.graphs.files import PublicFile, read_plain
from fedhpo_gym.datasets.graphs.graph_sets import FOLDER, GraphSetSource, pack
from fedhpo_gym.datasets.graphs.sparse import from_entries

PARTS = ("A", "graph_indicator", "graph_labels", "node_labels")
_COMMIT = "9b49b0775e30e49b564ecc918a2ce2ffa86ba014"
_ADDRESS = (
    f"https://raw.githubusercontent.com/alibaba/FederatedScope/{_COMMIT}/"
    "federatedscope/contrib/data/data"
)
_CITATION = "K. Borgwardt et al.: Protein function prediction via graph kernels, 2005; TUDataset"


@dataclass(frozen=True, kw_only=True)
class TUSource(GraphSetSource):
    """Four text files: edges, graph of each node, label of each graph, label of each node.

    Nodes and graphs are numbered from 1. The features of a node are its label, one-hot, in the
    ascending order of the labels in the file; so are the classes of the graphs.
    """

    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        """See `GraphSetSource.parse`."""
        edges, graph, labels, kinds = (read_integers(read_plain(path)) for path in paths)
        graph, kinds = graph.ravel(), np.unique(kinds, return_inverse=True)[1].ravel()
        if len(kinds) != len(graph):
            raise self.damaged(f"{len(graph)} nodes have a graph but {len(kinds)} have a label")
        if (np.diff(graph) < 0).any() or graph[0] < 1 or graph[-1] > len(labels):
            raise self.damaged(f"the nodes must lie in order in the {len(labels)} graphs")
        if edges.shape[1:] != (2,) or edges.min() < 1 or edges.max() > len(graph):
            raise self.damaged(f"each edge must join two of the {len(graph)} nodes")
        shape = (len(kinds), self.num_features)
        if kinds.max() >= self.num_features:
            raise self.damaged(f"nodes must have {self.num_features} labels, got {kinds.max() + 1}")
        nodes = from_entries(np.arange(len(kinds)), kinds, np.ones(len(kinds)), shape)
        return pack(
            nodes,
            offsets=np.searchsorted(graph, np.arange(1, len(labels) + 2)),
            edges=edges.T - 1,
            labels=np.unique(labels, return_inverse=True)[1].ravel(),
        )


def read_integers(content: bytes) -> NDArray[np.int64]:
    """Return the (lines, columns) integers of a text, separated by commas.

    Raises:
        ValueError: a cell is no integer, or a line has another number of cells.
    """
    text = content.decode("ascii")
    rows = [[int(cell) for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


def tu_files(name: str, blobs: Sequence[str]) -> tuple[PublicFile, ...]:
    """Return the four files of a set in the order of `PARTS`."""
    names = [f"{name}_{part}.txt" for part in PARTS]
    return tuple(
        PublicFile(f"{_ADDRESS}/{name}/raw/{file}", f"{FOLDER}/{name}/{file}", blob)
        for file, blob in zip(names, blobs, strict=True)
    )


TU_SETS = (
    TUSource(
        name="ENZYMES",
        num_rows=600,
        num_classes=6,
        num_features=3,
        licence="none stated by the publisher, who asks for the citation",
        citation=_CITATION,
        files=tu_files(
            "ENZYMES",
            (
                "1036978942e8dcfa04a23e811b4d01a49a98699f",
                "dcc03b2f70b09ffd0902bb56d43093dae6269643",
                "a38377c0bab3c5443a06d34e688b7f3929d54101",
                "67cf5b47d40d920639a0ab54bd98ca22f8f3f659",
            ),
        ),
    ),
    TUSource(
        name="PROTEINS",
        num_rows=1113,
        num_classes=2,
        num_features=3,
        licence="none stated by the publisher, who asks for the citation",
        citation=_CITATION,
        files=tu_files(
            "PROTEINS_full",
            (
                "ee53ec0da8436f73dd901605817310b5d49e3385",
                "b57414429ddf0e5e5a455c312215a57cd6240993",
                "06b4e6dd3fb2878d8e9012f1f5427bd5d1c08b61",
                "4f0beae20f4d5b668eae4a98488e4360b112968d",
            ),
        ),
    ),
)
