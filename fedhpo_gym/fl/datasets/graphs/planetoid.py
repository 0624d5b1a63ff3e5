"""Citation graphs, in the form of "Pitfalls of Graph Neural Network Evaluation": one .npz each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.fl.datasets import cache
from fedhpo_gym.fl.datasets.base import Source
from fedhpo_gym.fl.datasets.graphs.download import fetch
from fedhpo_gym.fl.datasets.graphs.records import NodeGraph, make_node_graph
from fedhpo_gym.fl.datasets.records import Dataset, SparseRows

_COMMIT = "1e72912a0810cdf27ae54fd589a3b43358a2b161"
_ADDRESS = f"https://raw.githubusercontent.com/shchur/gnn-benchmark/{_COMMIT}/data/npz"
_LICENCE = "MIT (repository shchur/gnn-benchmark)"
_SEN = "P. Sen et al.: Collective Classification in Network Data, AI Magazine 29(3), 2008"
_FOLDER = "gnn_npz"


@dataclass(frozen=True, kw_only=True)
class NodeGraphSource(Source):
    """A citation graph: papers with bags of words, their fields, and who cites whom.

    Attributes:
        num_features: number of words.
        file: name of its .npz file.
        git_blob: the id that git gives the file; it serves as the checksum, as the publisher's
            repository vouches for it.
    """

    num_features: int
    file: str
    git_blob: str

    @property
    def origin(self) -> str:
        """The address of the file."""
        return f"{_ADDRESS}/{self.file}"

    def read(self) -> NodeGraph:
        """See `Source.read`."""
        path = cache.find(self.file, f"{_FOLDER}/{self.file}")
        if path is None:
            path = cache.data_folder() / _FOLDER / self.file
            fetch(self.origin, path, self.verify, self.repair)
        self.verify(path)
        return read_npz(self.name, path, self.num_classes)

    def verify(self, path: Path) -> None:
        """Compare a file with its checksum.

        Raises:
            DamagedDataError: it has another one; names the repair command.
        """
        found = git_blob(path.read_bytes())
        if found != self.git_blob:
            raise DamagedDataError(
                f"{path} has the git id {found}, expected {self.git_blob}; delete it and run "
                f"`{self.repair}`"
            )

    def check(self, dataset: Dataset) -> None:
        """Compare with the documentation, the number of words included."""
        super().check(dataset)
        if dataset.features.shape[1] != self.num_features:
            raise DamagedDataError(
                f"data set {self.name} must have {self.num_features} features, got "
                f"{dataset.features.shape[1]}; run `{self.repair}` to fetch it again"
            )


def git_blob(content: bytes) -> str:
    """Return the id that git gives a file of this content."""
    whole = b"blob %d\0" % len(content) + content
    return hashlib.sha1(whole, usedforsecurity=False).hexdigest()


def read_npz(name: str, path: Path, num_classes: int) -> NodeGraph:
    """Read a graph from an .npz file: CSR matrices `attr` (n, d) and `adj` (n, n), and `labels`.

    Edges are taken as undirected, whatever their direction and number in the file.
    """
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files if not key.endswith("_names")}
    features = SparseRows(
        arrays["attr_indptr"].astype(np.int64),
        arrays["attr_indices"].astype(np.int32),
        arrays["attr_data"].astype(np.float32),
        int(arrays["attr_shape"][1]),
    )
    degrees = np.diff(arrays["adj_indptr"])
    citing = np.repeat(np.arange(len(degrees)), degrees)
    edges = np.stack([citing, arrays["adj_indices"]])
    return make_node_graph(name, features, arrays["labels"], edges, num_classes)


NODE_GRAPHS = (
    NodeGraphSource(
        name="Cora",
        num_rows=2708,
        num_features=1433,
        num_classes=7,
        licence=_LICENCE,
        citation=_SEN,
        file="cora.npz",
        git_blob="b08fd856430b2b7787aa646a33ad51132b4f6f80",
    ),
    NodeGraphSource(
        name="CiteSeer",
        num_rows=3312,
        num_features=3703,
        num_classes=6,
        licence=_LICENCE,
        citation=_SEN,
        file="citeseer.npz",
        git_blob="0e71905a80ab405875cc6c7a7a15190aa35fec79",
    ),
    NodeGraphSource(
        name="PubMed",
        num_rows=19717,
        num_features=500,
        num_classes=3,
        licence=_LICENCE,
        citation="G. Namata et al.: Query-driven Active Surveying for Collective Classification",
        file="pubmed.npz",
        git_blob="25d0b1bebcb08296348572ca0cebe322fdd085b0",
    ),
)
