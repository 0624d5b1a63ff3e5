"""Citation graphs (Shchur et al., 2018), and functions shared by all graph data.

Sparse matrices are `SparseRows`, edges are (2, m) arrays with each undirected edge once. The graph
sets and graph federations use these checks and constructors. `PublicFile` is a file at a fixed
commit of a repository, verified by its git id.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.checks import Axes, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.core.files import read_unpacked
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import repair_advice, reporting_damage, verified_file
from fedhpo_gym.data.records import Dataset, Source, SparseRows, seal


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeGraph(Dataset):
    """One graph; its samples are its nodes, and the labels are theirs."""

    edges: Integers  # (2, m) int64, each undirected edge once, smaller end first, no self loops

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return (*super().arrays, self.edges)


@validate_call
def make_node_graph(
    name: str, features: SparseRows, labels: "Labels", edges: "Edges", num_classes: int
) -> NodeGraph:
    """Return a graph of edges in any order and direction, with duplicates; arrays are read-only."""
    labels, edges = np.array(labels, dtype=np.int64), undirected_edges(edges)
    if len(features) != len(labels):
        raise InvalidArgumentError(
            f"`features` and `labels` must have one entry per node, got {len(features)} and "
            f"{len(labels)}"
        )
    check_codes("labels", labels, num_classes)
    check_codes("edges", edges, len(labels))
    digest = seal(*features.arrays, labels, edges)
    return NodeGraph(name, features, labels, num_classes, digest, edges=edges)


def check_codes(argument: str, codes: Integers, end: int) -> None:
    """Check that integers are in 0..end-1."""
    outside = codes[(codes < 0) | (codes >= end)]
    if outside.size:
        raise InvalidArgumentError(f"`{argument}` must lie in 0..{end - 1}, got {int(outside[0])}")


Edges = Annotated[NDArray[Any], Axes(2, 2, empty=True)]
Labels = Annotated[NDArray[Any], Axes(1, 1, empty=True)]


@validate_call
def matmul(a: SparseRows, b: SparseRows) -> SparseRows:
    """Return the product of two sparse matrices, accumulated in float64."""
    product = _to_scipy(a) @ _to_scipy(b)
    product.sort_indices()
    return SparseRows(
        product.indptr.astype(np.int64),
        product.indices.astype(np.int32),
        product.data.astype(np.float32),
        b.num_columns,
    )


def check_sparse(argument: str, rows: SparseRows) -> None:
    """Check that the arrays of a sparse matrix are consistent, and its values finite."""
    starts, columns = rows.indptr, rows.indices
    fits = starts.ndim == columns.ndim == rows.values.ndim == 1 and len(starts) > 0
    fits = fits and starts[0] == 0 and starts[-1] == len(columns) == len(rows.values)
    fits = fits and bool((np.diff(starts) >= 0).all())
    if not fits or ((columns < 0) | (columns >= rows.num_columns)).any():
        raise InvalidArgumentError(
            f"`{argument}` must be the arrays of a sparse matrix with {rows.num_columns} columns, "
            f"got {len(columns)} column numbers and {len(rows.values)} values"
        )
    if not np.isfinite(rows.values).all():
        raise InvalidArgumentError(f"`{argument}` must hold finite numbers, got nan or infinity")


def from_entries(
    rows: Integers, columns: Integers, values: NDArray[Any], shape: tuple[int, int]
) -> SparseRows:
    """Return a sparse matrix of entries in any order, at most one for each cell."""
    order = np.lexsort((columns, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return SparseRows(
        indptr.astype(np.int64),
        columns[order].astype(np.int32),
        values[order].astype(np.float32),
        shape[1],
    )


def from_dense(matrix: NDArray[Any]) -> SparseRows:
    """Return a sparse matrix of the non-zero values of an (n, d) array."""
    rows, columns = np.nonzero(matrix)
    return from_entries(rows, columns, matrix[rows, columns], matrix.shape)


@validate_call
def undirected_edges(edges: Edges) -> Integers:
    """Return (2, m) int64 edges once each: smaller end first, sorted, without self loops."""
    ends = np.sort(np.asarray(edges, dtype=np.int64), axis=0)
    ends = ends[:, ends[0] != ends[1]]
    return np.unique(ends, axis=1)


@validate_call
def normalised_adjacency(
    edges: Annotated[Integers, Axes(2, 2, empty=True)], num_nodes: int
) -> SparseRows:
    """Return (n, n) D^-1/2 (A + I) D^-1/2, D the row sums of A + I (Kipf and Welling, 2017)."""
    if not -1 <= edges.max(initial=-1) < num_nodes or edges.min(initial=0) < 0:
        raise InvalidArgumentError(
            f"`edges` must be pairs of nodes, numbered below `num_nodes`, got {num_nodes} nodes"
        )
    loops = np.arange(num_nodes)
    rows = np.concatenate([edges[0], edges[1], loops])
    columns = np.concatenate([edges[1], edges[0], loops])
    degree = np.bincount(rows, minlength=num_nodes).astype(np.float64)
    values = 1.0 / np.sqrt(degree[rows] * degree[columns])
    return from_entries(rows, columns, values, (num_nodes, num_nodes))


def _to_scipy(matrix: SparseRows) -> Any:
    sparse: Any = cache.import_optional("scipy.sparse", "graphs")
    values = matrix.values.astype(np.float64)
    return sparse.csr_matrix((values, matrix.indices, matrix.indptr), shape=matrix.shape)


@dataclass(frozen=True)
class PublicFile:
    """One file in a public repository, stored plain or with gzip in the data folder."""

    url: str  # https address of the plain file at one fixed commit
    path: str  # below the data folder, with or without its first folder
    git_blob: str  # git's id of the plain file, which serves as the checksum

    def local_path(self, repair: str) -> Path:
        """Return the path of the verified file, and download it first if necessary."""
        short = str(PurePosixPath(*PurePosixPath(self.path).parts[1:]))
        path = cache.find_data(self.path, f"{self.path}.gz", short, f"{short}.gz")
        if path is not None:
            self._verify(path, repair)
            return path
        target = cache.data_folder() / self.path
        with verified_file(self.url, target, None, repair):
            self._verify(target, repair)
        return target

    def _verify(self, path: Path, repair: str) -> None:
        with reporting_damage(path, repair_advice(repair)):
            blob_id = git_blob(read_unpacked(path))
        if blob_id != self.git_blob:
            raise DamagedDataError(
                f"{path} has the git id {blob_id}, expected {self.git_blob}; "
                f"{repair_advice(repair)}"
            )


def git_blob(content: bytes) -> str:
    """Return the id of a file of this content in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


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
        return self.file.url

    def read(self) -> NodeGraph:
        path = self.file.local_path(self.repair)
        with reporting_damage(path, repair_advice(self.repair)):
            return read_node_graph(self.name, path, self.num_classes)

    def check(self, dataset: Dataset) -> None:
        """Check the documented properties, the number of words included."""
        super().check(dataset)
        if dataset.features.shape[1] != self.num_features:
            raise DamagedDataError(
                f"data set {self.name} must have {self.num_features} features, got "
                f"{dataset.features.shape[1]}; {self.again}"
            )


def read_node_graph(name: str, path: Path, num_classes: int) -> NodeGraph:
    """Read a graph from an .npz file: CSR matrices `attr` (n, d) and `adj` (n, n), and `labels`."""
    with np.load(io.BytesIO(read_unpacked(path)), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files if not key.endswith("_names")}
    features, adjacency = (_read_matrix(arrays, prefix) for prefix in ("attr", "adj"))
    degrees = np.diff(adjacency.indptr)
    edges = np.stack([np.repeat(np.arange(len(degrees)), degrees), adjacency.indices])
    return make_node_graph(name, features, _read_integers(arrays, "labels"), edges, num_classes)


def _read_matrix(arrays: Mapping[str, NDArray[Any]], prefix: str) -> SparseRows:
    matrix = SparseRows(
        _read_integers(arrays, f"{prefix}_indptr"),
        _read_integers(arrays, f"{prefix}_indices").astype(np.int32),
        arrays[f"{prefix}_data"].astype(np.float32),
        int(_read_integers(arrays, f"{prefix}_shape")[1]),
    )
    check_sparse(prefix, matrix)
    return matrix


def _read_integers(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.int64]:
    return arrays[name].astype(np.int64, casting="safe")


def _graph_source(
    name: str, num_nodes: int, num_words: int, num_fields: int, blob: str, citation: str = _SEN
) -> NodeGraphSource:
    file = f"{name.lower()}.npz"
    return NodeGraphSource(
        name=name,
        num_rows=num_nodes,
        num_features=num_words,
        num_classes=num_fields,
        licence="MIT (repository shchur/gnn-benchmark)",
        open_licence=True,
        citation=citation,
        file=PublicFile(f"{_ADDRESS}/{file}", f"gnn_npz/{file}", blob),
    )


_PUBMED = "G. Namata et al.: Query-driven Active Surveying for Collective Classification"
NODE_GRAPHS = (
    _graph_source("Cora", 2708, 1433, 7, "b08fd856430b2b7787aa646a33ad51132b4f6f80"),
    _graph_source("CiteSeer", 3312, 3703, 6, "0e71905a80ab405875cc6c7a7a15190aa35fec79"),
    _graph_source("PubMed", 19717, 500, 3, "25d0b1bebcb08296348572ca0cebe322fdd085b0", _PUBMED),
)
