"""Citation graphs, in the form of "Pitfalls of Graph Neural Network Evaluation": one .npz each."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.data.cache import again, reading
from fedhpo_gym.data.graphs import NodeGraph, PublicFile, check_rows, make_node_graph, read_plain
from fedhpo_gym.data.records import Dataset, Source, SparseRows

_COMMIT = "1e72912a0810cdf27ae54fd589a3b43358a2b161"
_ADDRESS = f"https://raw.githubusercontent.com/shchur/gnn-benchmark/{_COMMIT}/data/npz"
_SEN = "P. Sen et al.: Collective Classification in Network Data, AI Magazine 29(3), 2008"


@dataclass(frozen=True, kw_only=True)
class NodeGraphSource(Source):
    """A citation graph: papers with bags of words, their fields, and who cites whom."""

    num_features: int  # number of words
    file: PublicFile  # its .npz file

    @property
    def origin(self) -> str:
        """The address of the file."""
        return self.file.url

    def read(self) -> NodeGraph:
        path = self.file.local(self.repair)
        with reading(path, again(self.repair)):
            return read_npz(self.name, path, self.num_classes)

    def check(self, dataset: Dataset) -> None:
        """Compare with the documentation, the number of words included."""
        super().check(dataset)
        if dataset.features.shape[1] != self.num_features:
            raise DamagedDataError(
                f"data set {self.name} must have {self.num_features} features, got "
                f"{dataset.features.shape[1]}; {self.again}"
            )


def read_npz(name: str, path: Path, num_classes: int) -> NodeGraph:
    """Read a graph from an .npz file: CSR matrices `attr` (n, d) and `adj` (n, n), and `labels`."""
    with np.load(io.BytesIO(read_plain(path)), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files if not key.endswith("_names")}
    features, adjacency = (_matrix(arrays, part) for part in ("attr", "adj"))
    degrees = np.diff(adjacency.indptr)
    citing = np.repeat(np.arange(len(degrees)), degrees)
    edges = np.stack([citing, adjacency.indices])
    return make_node_graph(name, features, _integers(arrays, "labels"), edges, num_classes)


def _matrix(arrays: Mapping[str, NDArray[Any]], part: str) -> SparseRows:
    matrix = SparseRows(
        _integers(arrays, f"{part}_indptr"),
        _integers(arrays, f"{part}_indices").astype(np.int32),
        arrays[f"{part}_data"].astype(np.float32),
        int(_integers(arrays, f"{part}_shape")[1]),
    )
    check_rows(part, matrix)
    return matrix


def _integers(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.int64]:
    return arrays[name].astype(np.int64, casting="safe")


def _listed(
    name: str, rows: int, words: int, fields: int, blob: str, citation: str = _SEN
) -> NodeGraphSource:
    file = f"{name.lower()}.npz"
    return NodeGraphSource(
        name=name,
        num_rows=rows,
        num_features=words,
        num_classes=fields,
        licence="MIT (repository shchur/gnn-benchmark)",
        open_licence=True,
        citation=citation,
        file=PublicFile(f"{_ADDRESS}/{file}", f"gnn_npz/{file}", blob),
    )


_PUBMED = "G. Namata et al.: Query-driven Active Surveying for Collective Classification"
NODE_GRAPHS = (
    _listed("Cora", 2708, 1433, 7, "b08fd856430b2b7787aa646a33ad51132b4f6f80"),
    _listed("CiteSeer", 3312, 3703, 6, "0e71905a80ab405875cc6c7a7a15190aa35fec79"),
    _listed("PubMed", 19717, 500, 3, "25d0b1bebcb08296348572ca0cebe322fdd085b0", _PUBMED),
)
