"""Reading ARFF and CSV tables and label-encoding their nominal columns."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.datasets import cache

Column = NDArray[np.float64] | list[str]


def read_columns(path: Path) -> list[Column]:
    """Read an ARFF file, or a CSV file with one header line, as columns; the last is the target.

    Numeric columns come back as float64 arrays, nominal ones as lists of strings.
    """
    if path.suffix == ".arff":
        arff: Any = cache.require("arff", "data")
        with path.open(encoding="utf-8") as handle:
            rows = arff.load(handle)["data"]
    else:
        with path.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.reader(handle, skipinitialspace=True))[1:]
            rows = [[_number(cell.strip()) for cell in row] for row in rows if row]
    return [_column(list(cells)) for cells in zip(*rows, strict=True)]


def encode_columns(columns: list[Column]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Label-encode nominal columns (sorted order of their values), without any scaling.

    Returns:
        (n, d) float64 features and (n,) int64 labels.
    """
    features = np.stack([_codes(column) for column in columns[:-1]], axis=1)
    labels = np.unique(np.asarray(columns[-1]), return_inverse=True)[1]
    return np.ascontiguousarray(features), labels.astype(np.int64)


def _codes(column: Column) -> NDArray[np.float64]:
    if isinstance(column, np.ndarray):
        return column
    return np.unique(np.asarray(column), return_inverse=True)[1].astype(np.float64)


def _column(cells: list[Any]) -> Column:
    if all(isinstance(cell, int | float) for cell in cells):
        return np.asarray(cells, dtype=np.float64)
    return [str(cell) for cell in cells]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
