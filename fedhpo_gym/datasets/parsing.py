"""Reading ARFF and CSV tables and label-encoding their nominal columns."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache


@dataclass(frozen=True)
class Nominal:
    """A column of categories.

    Attributes:
        cells: the value of each row.
        order: the categories in the order the data set declares; a code is a position in it.
    """

    cells: list[str]
    order: tuple[str, ...]


Column = NDArray[np.float64] | Nominal


def read_columns(path: Path) -> list[Column]:
    """Read an ARFF file, or a CSV file with one header line, as columns; the last is the target.

    Numeric columns come back as float64 arrays, nominal ones as `Nominal`. What is wrong with a
    file comes as whatever the parsers raise: see `reading`.
    """
    if path.suffix == ".arff":
        arff: Any = cache.require("arff", "data")
        with path.open(encoding="utf-8") as handle:
            content = arff.load(handle)
        kinds = [kind for _, kind in content["attributes"]]
        return [
            Nominal([str(cell) for cell in cells], tuple(kind))
            if isinstance(kind, list)
            else np.asarray(cells, dtype=np.float64)
            for cells, kind in zip(zip(*content["data"], strict=True), kinds, strict=True)
        ]
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.reader(handle, skipinitialspace=True) if row][1:]
    return [np.array(cells, dtype=np.float64) for cells in zip(*rows, strict=True)]


def encode_columns(columns: list[Column]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Label-encode nominal columns, without any scaling.

    A nominal feature becomes the position of its category in the declared order, as the arrays of
    the OpenML client that the original tables were computed on; classes are numbered in the sorted
    order of their names.

    Returns:
        (n, d) float64 features and (n,) int64 labels.
    """
    features = np.stack([_codes(column) for column in columns[:-1]], axis=1)
    target = columns[-1]
    names = np.asarray(target.cells) if isinstance(target, Nominal) else target
    labels = np.unique(names, return_inverse=True)[1]
    return np.ascontiguousarray(features), labels.astype(np.int64)


def _codes(column: Column) -> NDArray[np.float64]:
    if isinstance(column, Nominal):
        position = {name: float(code) for code, name in enumerate(column.order)}
        return np.array([position[cell] for cell in column.cells])
    return column
