"""Products of sparse matrices, and the normalised adjacency of a graph."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.records import SparseRows
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import Axes, checked_types

Indices = NDArray[np.int64]
Edges = Annotated[NDArray[Any], Axes(2, 2, empty=True)]
Labels = Annotated[NDArray[Any], Axes(1, 1, empty=True)]


@checked_types
def matmul(left: SparseRows, right: SparseRows) -> SparseRows:
    """Return the product of two sparse matrices, accumulated in float64.

    Raises:
        MissingDependencyError: the extra `graphs` is not installed.
    """
    product = _to_scipy(left) @ _to_scipy(right)
    product.sort_indices()
    return SparseRows(
        product.indptr.astype(np.int64),
        product.indices.astype(np.int32),
        product.data.astype(np.float32),
        right.num_columns,
    )


def check_rows(what: str, rows: SparseRows) -> None:
    """Refuse a matrix whose three arrays contradict each other, or with values that are no number.

    Raises:
        InvalidArgumentError: they do.
    """
    starts, columns = rows.indptr, rows.indices
    fits = starts.ndim == columns.ndim == rows.values.ndim == 1 and len(starts) > 0
    fits = fits and starts[0] == 0 and starts[-1] == len(columns) == len(rows.values)
    fits = fits and bool((np.diff(starts) >= 0).all())
    if not fits or ((columns < 0) | (columns >= rows.num_columns)).any():
        raise InvalidArgumentError(
            f"`{what}` must be the arrays of a sparse matrix with {rows.num_columns} columns, got "
            f"{len(columns)} column numbers and {len(rows.values)} values"
        )
    if not np.isfinite(rows.values).all():
        raise InvalidArgumentError(f"`{what}` must hold finite numbers, got nan or infinity")


def from_entries(
    rows: Indices, columns: Indices, values: NDArray[Any], shape: tuple[int, int]
) -> SparseRows:
    """Build a sparse matrix from its entries, in any order, each place at most once."""
    order = np.lexsort((columns, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return SparseRows(
        indptr.astype(np.int64),
        columns[order].astype(np.int32),
        values[order].astype(np.float32),
        shape[1],
    )


def from_dense(matrix: NDArray[Any]) -> SparseRows:
    """Build a sparse matrix from the non-zero values of an (n, d) array."""
    rows, columns = np.nonzero(matrix)
    return from_entries(rows, columns, matrix[rows, columns], matrix.shape)


@checked_types
def undirected(edges: Edges) -> Indices:
    """Return (2, m) int64 edges once each: smaller end first, sorted, without self loops.

    Args:
        edges: (2, any) node numbers, in either direction, possibly more than once.
    """
    ends = np.sort(np.asarray(edges, dtype=np.int64), axis=0)
    ends = ends[:, ends[0] != ends[1]]
    return np.unique(ends, axis=1)


@checked_types
def normalised_adjacency(
    edges: Annotated[Indices, Axes(2, 2, empty=True)], num_nodes: int
) -> SparseRows:
    """Return D^-1/2 (A + I) D^-1/2, where D holds the row sums of A + I.

    The propagation of a graph convolution (Kipf and Welling, ICLR 2017, Eq. 2). An isolated node
    keeps its own features: its row is 1 on the diagonal.

    Args:
        edges: (2, m) undirected edges, as `undirected` returns them.
        num_nodes: n.

    Returns:
        (n, n), symmetric.

    Raises:
        InvalidArgumentError: an edge ends outside the graph.
    """
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
    sparse: Any = cache.require("scipy.sparse", "graphs")
    values = matrix.values.astype(np.float64)
    return sparse.csr_matrix((values, matrix.indices, matrix.indptr), shape=matrix.shape)
