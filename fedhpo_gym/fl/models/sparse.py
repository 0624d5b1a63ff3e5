"""Products of sparse matrices with dense ones, fast on one core."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.data.records import SparseRows


class SparseMatrix:
    """A constant sparse matrix that multiplies from the left, summed in order of columns."""

    def __init__(self, rows: SparseRows, device: torch.device) -> None:
        self.shape = rows.shape
        self._columns = torch.from_numpy(rows.indices.astype(np.int32)).to(device)
        self._offsets = torch.from_numpy(rows.indptr.astype(np.int32)).to(device)
        self._values = torch.from_numpy(rows.values.astype(np.float32)).to(device)

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Return the (n, k) product with a contiguous (d, k) matrix."""
        product: Tensor = torch.embedding_bag(
            dense, self._columns, self._offsets, False, 0, False, self._values, True
        )[0]
        return product


def take(
    matrix: SparseRows, rows: NDArray[np.int64], columns: NDArray[np.int64] | None = None
) -> SparseRows:
    """Return some rows of a sparse matrix, and of these some columns, in ascending order."""
    counts = np.diff(matrix.indptr)[rows]
    where = np.repeat(np.arange(len(rows)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    stored = matrix.indptr[rows][where] + np.arange(len(where)) - first
    found, values = matrix.indices[stored].astype(np.int64), matrix.values[stored]
    width = matrix.num_columns
    if columns is not None:
        kept = np.isin(found, columns)
        where, values = where[kept], values[kept]
        found, width = np.searchsorted(columns, found[kept]), len(columns)
    return _sorted(where, found, values, len(rows), width)


def transpose(matrix: SparseRows) -> SparseRows:
    """Return the transposed matrix."""
    rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.indptr))
    columns = matrix.indices.astype(np.int64)
    return _sorted(columns, rows, matrix.values, matrix.num_columns, len(matrix))


def with_ones(matrix: SparseRows) -> SparseRows:
    """Append a column of ones: its weights are the bias of a linear layer."""
    indptr = matrix.indptr + np.arange(len(matrix) + 1)
    ends = matrix.indptr[1:]
    return SparseRows(
        indptr,
        np.insert(matrix.indices, ends, matrix.num_columns),
        np.insert(matrix.values, ends, 1.0),
        matrix.num_columns + 1,
    )


def _sorted(
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    values: NDArray[np.float32],
    num_rows: int,
    num_columns: int,
) -> SparseRows:
    order = np.lexsort((columns, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
    return SparseRows(
        indptr.astype(np.int64), columns[order].astype(np.int32), values[order], num_columns
    )
