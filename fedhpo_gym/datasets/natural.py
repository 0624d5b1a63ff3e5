"""Tables for federations: natural ones, with their clients, and those of KEEL, without.

One loader for all that `fedhpo_gym.natural` lists, another for all of `fedhpo_gym.keel`.

How a row becomes numbers looks at no target, and is agreed before anybody trains:

- words: a column of 0 and 1 for every value that at least `RARE` rows have, in sorted order, and
  one for all rarer values together. What is missing is a value of its own. A federation learns this
  from how often each value occurs, summed over clients.
- codes of intervals: as words.
- numbers: as they are, or log(1 + x) where the description says so. Where any is missing, a
  column of 0 and 1 says of which rows; the number itself is NaN, and a federation puts the mean of
  the training rows there.
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.base import Source
from fedhpo_gym.datasets.reading import again, reading
from fedhpo_gym.datasets.records import Dataset, make_dataset
from fedhpo_gym.errors import DamagedDataError, MissingDataError
from fedhpo_gym.keel import KEEL, KeelTable
from fedhpo_gym.natural import NATURAL, NaturalTable

RARE = 20
"""Rows that a value must have for a column of its own."""

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NaturalSource(Source):
    """A table with natural clients, from the folder `natural` of the data folder.

    Attributes:
        table: its description.
    """

    table: NaturalTable

    @property
    def origin(self) -> str:
        """The R data set it was made from."""
        return self.table.origin

    def read(self) -> Dataset:
        """Return (n, width) float64 features, NaN where a number is missing, and the clients."""
        path = _found(self, "natural", f"{self.table.file}.csv.xz", self.table.sha256)
        with reading(path, again(self.repair)):
            with lzma.open(path, "rt", encoding="utf-8", newline="") as handle:
                head, *rows = csv.reader(handle)
            clients, targets, *columns = (np.array(c) for c in zip(*rows, strict=True))
            features = np.stack(list(encoded(self.table, head[2:], columns)), axis=1)
            labels, users = (np.unique(c, return_inverse=True)[1] for c in (targets, clients))
        return make_dataset(
            self.name,
            features,
            labels.astype(np.int64),
            self.num_classes,
            users.astype(np.int64),
        )

    def check(self, dataset: Dataset) -> None:
        """Compare with the description, the number of clients and of columns included."""
        super().check(dataset)
        clients = 0 if dataset.users is None else len(np.unique(dataset.users))
        found = clients, dataset.features.shape[1]
        if found != (self.table.clients, self.table.width):
            raise DamagedDataError(
                f"data set {self.name} must have {self.table.clients} clients and "
                f"{self.table.width} columns, got {found}; {self.again}"
            )


@dataclass(frozen=True, kw_only=True)
class KeelSource(Source):
    """A table of KEEL without clients, from the folder `keel` of the data folder.

    Attributes:
        table: its description.
    """

    table: KeelTable

    @property
    def origin(self) -> str:
        """The package it was made from."""
        return self.table.origin

    def read(self) -> Dataset:
        """Return (n, width) float64 features of 0 and 1."""
        path = _found(self, "keel", f"{self.table.file}.npz", self.table.sha256)
        with reading(path, again(self.repair)):
            kinds = {"x": ("int8", 2), "y": ("int8", 1)}
            codes, labels = cache.columns(cache.load_npz(path), kinds).values()
            features = np.stack([c for cells in codes.T for c in _words(cells)], axis=1)
        return make_dataset(self.name, features, labels.astype(np.int64), self.num_classes)


def _found(source: Source, folder: str, name: str, sha256: str) -> Path:
    """Return the verified file of a source.

    Raises:
        MissingDataError: it is not in the data folder; says what brings it.
        DamagedDataError: it has another checksum.
    """
    path = cache.find(f"{folder}/{name}", name)
    if path is None:
        raise MissingDataError(
            f"{source.name} needs {name} (made from {source.origin}; sha256 {sha256}): put it into "
            f"{cache.data_folder() / folder}, or name the folder with `{folder}` by {cache.ENV_VAR}"
        )
    cache.verify(path, sha256, source.repair)
    return path


def encoded(
    table: NaturalTable, names: Sequence[str], columns: Sequence[NDArray[np.str_]]
) -> Iterator[Column]:
    """Yield the columns of the encoded features, (n,) each; see the docstring of this module.

    Args:
        table: which columns are words, and which are read as logarithms.
        names: of the columns.
        columns: (n,) cells of each, an empty one where nothing is known.
    """
    for name, cells in zip(names, columns, strict=True):
        if name in table.categories:
            yield from _words(cells)
            continue
        missing = cells == ""
        numbers = np.where(missing, "nan", cells).astype(np.float64)
        yield np.log1p(numbers) if name in table.logs else numbers
        if missing.any():
            yield missing.astype(np.float64)


def _words(cells: NDArray[np.str_] | NDArray[np.int8]) -> Iterator[Column]:
    _, which, counts = np.unique(cells, return_inverse=True, return_counts=True)
    for position in np.flatnonzero(counts >= RARE):
        yield (which == position).astype(np.float64)
    if (rare := counts < RARE).any():
        yield rare[which].astype(np.float64)


NATURAL_SOURCES = tuple(
    NaturalSource(
        name=table.name,
        num_rows=table.rows,
        num_classes=table.classes,
        licence="none stated for the data",
        citation=table.origin,
        table=table,
    )
    for table in NATURAL
)

KEEL_SOURCES = tuple(
    KeelSource(
        name=table.name,
        num_rows=table.rows,
        num_classes=table.classes,
        licence="none stated",
        citation=f"{table.origin}; Alcala-Fdez et al.: KEEL data-mining software tool (2011)",
        table=table,
    )
    for table in KEEL
)
