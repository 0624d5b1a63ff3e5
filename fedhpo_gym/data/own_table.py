"""A table of one's own: a first look, what each column is, who holds a row, what is predicted."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.core.checks import Range, check_fields, short_repr
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    require_known,
    require_optional,
    suggest,
)
from fedhpo_gym.core.files import path_exists, require_growth
from fedhpo_gym.data import cache
from fedhpo_gym.data.federation import MIN_SIZE
from fedhpo_gym.data.frames import (
    DATE,
    MARKS,
    NUMBER,
    as_numbers,
    check_cells,
    is_missing,
    separator_advice,
)
from fedhpo_gym.data.natural import RARE, columns_of_numbers, columns_of_words, grows
from fedhpo_gym.data.records import Dataset, Source, make_dataset

ENCODINGS: Final[Mapping[str, str]] = {
    "number": "as it is; where `rare` rows lack it, a column of 0 and 1 says which",
    "log": "log(1 + x), for numbers that are never below 0",
    "date": "days since 1970, of dates such as 2026-05-31 or 2026-05-31 12:00",
    "words": "a column of 0 and 1 for each value of `rare` rows, and one for all other values",
    "none": "left out",
}
"""What a column can become."""
LONGEST: Final = 64
SPLITS: Final[Mapping[str, str]] = {"60/20/20": "user", "80/10/10": "user-80-10-10"}
"""How the rows of a client are split -> the partition that does so."""


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """The description of a table, as a task file has it.

    Attributes:
        name: what ids call the data set: a capital letter, then letters and digits.
        data: name of the CSV file, which lies beside the task file.
        sha256: checksum of the CSV file.
        target: column that is predicted; its values are classes, in the order of their words.
        columns: one of `ENCODINGS` for each of the other columns but that of the clients.
        client: column that says who holds a row; None to deal the rows to `clients`.
        clients: how many clients rows are dealt to, by latent Dirichlet allocation.
        alpha: concentration of that, as of `make_federation`.
        split: of a client's rows, one of `SPLITS`; rows that are dealt are split 80/10/10.
        fewest: clients of fewer rows are left out.
        rare: rows that a column of 0 and 1 must have of 0 and of 1; others are left out.
        version: raised when anything here changes: ids hold it.
        unseen: whether there are ids whose clients are split, too; five clients are needed.
        licence: terms of the data.
        citation: whom to cite.
    """

    name: str
    data: str
    sha256: str
    target: str
    columns: Mapping[str, str]
    client: str | None = None
    clients: Annotated[int, Range(2)] | None = None
    alpha: Annotated[float, Range(0.0, ends="()")] = 0.5
    split: str = "60/20/20"
    fewest: Annotated[int, Range(1)] = 1
    rare: Annotated[int, Range(1)] = 20
    version: Annotated[int, Range(1)] = 1
    unseen: bool = True
    licence: str = "of the user"
    citation: str = "data of the user"

    def __post_init__(self) -> None:
        """Check every entry, and that the file is beside the task file."""
        check_fields(self)
        plain = self.name.isascii() and self.name.isalnum() and len(self.name) <= LONGEST
        if not (plain and self.name[:1].isupper()) or self.name.endswith("Unseen"):
            raise InvalidArgumentError(
                f"`name` must be a capital letter, then letters and digits, at most {LONGEST}, "
                f"such as 'Passed', and not end in 'Unseen', got {short_repr(self.name)}"
            )
        if Path(self.data).name != self.data or not self.data.endswith(".csv"):
            raise InvalidArgumentError(
                "`data` must be the name of a .csv file beside the task file, without folders, got "
                f"{short_repr(self.data)}"
            )
        if self.target == self.client:
            raise InvalidArgumentError(
                f"`target` must be another column than `client`, got {short_repr(self.target)} for "
                "both"
            )
        if named := [name for name in (self.target, self.client) if name in self.columns]:
            raise InvalidArgumentError(
                f"`columns` must name neither the target nor the client, got {short_repr(named[0])}"
            )
        for name, encoding in self.columns.items():
            require_known(f"encoding of the column {name!r}", encoding, ENCODINGS)
        require_known("split", self.split, SPLITS)
        if (self.client is None) == (self.clients is None):
            raise InvalidArgumentError(
                "either `client` must name a column or `clients` say how many there are, got "
                f"{short_repr((self.client, self.clients))}"
            )

    @property
    def partition(self) -> str:
        """How clients come about, as a problem names it."""
        return "lda" if self.client is None else SPLITS[self.split]


@dataclass(frozen=True, kw_only=True)
class OwnSource(Source):
    """A table of one's own; its samples are encoded once, and again when a file changes."""

    num_classes: int = field(default=0, init=False)  # the data say it
    library: ClassVar[tuple[str, str]] = ("pandas", "data")
    table: OwnTable
    path: Path  # of the task file

    @property
    def origin(self) -> str:
        return f"{self.table.data}, described by {self.path.name}"

    @property
    def offline(self) -> bool:
        return True

    @property
    def repair(self) -> str:
        return "fedhpo-gym new"

    @property
    def again(self) -> str:
        return f"correct {self.path}, or make it again by `fedhpo-gym new`"

    def read(self) -> Dataset:
        """Return (n, columns) float64 features, NaN where a number is missing."""
        data = self.path.with_name(self.table.data)
        if not path_exists(data):
            raise DamagedDataError(f"{data} is missing: {self.path} describes it; {self.again}")
        if data.resolve().parent != self.path.resolve().parent:
            raise DamagedDataError(f"{data} is a link to elsewhere: copy what it leads to")
        try:
            digest = cache.checksum(data)
        except OSError as error:
            raise DamagedDataError(f"{data} cannot be read ({error.strerror})") from error
        if digest != self.table.sha256:
            raise DamagedDataError(
                f"{data} has sha256 {digest}, and {self.path} was made for another; {self.again}"
            )
        name = f"own2-{self.table.name}"
        arrays = cache.derived(name, [data, self.path], lambda: self._described(data), self.repair)
        known = arrays["users"] if len(arrays["users"]) else None
        classes = int(arrays["labels"].max()) + 1
        return make_dataset(self.name, arrays["features"], arrays["labels"], classes, known)

    def check(self, dataset: Dataset) -> None:
        """Nothing is documented of it but what the description decides."""

    def _described(self, data: Path) -> dict[str, NDArray[Any]]:
        try:
            return self.encoded(data)
        except InvalidArgumentError as error:  # the data are as they were: the description is not
            raise DamagedDataError(f"{self.path} does not fit {data.name}: {error}") from error

    def encoded(self, data: Path) -> dict[str, NDArray[Any]]:
        """Return features, labels and users, as a file says them.

        Raises:
            InvalidArgumentError: the description does not fit the file.
        """
        with require_optional(f"data set {self.name}", "pandas", "data", "pandas"):
            import pandas
        table = self.table
        named = [table.target, *filter(None, [table.client])]
        # Numbers are read one by one, to the last digit; what is missing is an empty cell.
        check_cells(data.read_bytes(), data)
        frame = pandas.read_csv(
            data, dtype=str, compression=None, keep_default_na=False, na_values=[""]
        )
        if missing := {*named, *table.columns} - {*frame}:
            raise InvalidArgumentError(
                "`target`, `client` and `columns` must name columns of the data, got "
                f"{sorted(missing)}"
            )
        frame = self._kept(frame)
        features: list[NDArray[np.float64]] = []
        for name in table.columns:
            for column in self._columns(frame, name):
                features.append(column)
                require_growth(column.nbytes * len(features), data.stat().st_size, data)
        if not features:
            raise InvalidArgumentError("`columns` must leave one column in, got none that varies")
        codes = [pandas.factorize(frame[name], sort=True)[0].astype(np.int64) for name in named]
        return {
            "features": np.stack(features, axis=1),
            "labels": codes[0],
            "users": codes[1] if table.client else np.empty(0, np.int64),
        }

    def _kept(self, frame: Any) -> Any:
        table = self.table
        frame = frame.dropna(subset=[table.target, *filter(None, [table.client])])
        if table.client:
            frame = frame[
                frame.groupby(table.client)[table.target].transform("size") >= table.fewest
            ]
        if frame[table.target].nunique() < 2:
            raise InvalidArgumentError(
                f"`target` must have two values at least in the {len(frame)} rows that `fewest` = "
                f"{table.fewest} leaves, got {frame[table.target].unique().tolist()}"
            )
        if table.clients and len(frame) * 0.1 <= table.clients * MIN_SIZE:
            raise InvalidArgumentError(
                f"`clients` must be fewer than {len(frame) * 0.1 / MIN_SIZE:g}, so that each gets "
                f"{MIN_SIZE} of {len(frame)} rows in each split, got {table.clients}"
            )
        return frame

    def _columns(self, frame: Any, name: str) -> Iterator[NDArray[np.float64]]:
        column, encoding = frame[name], self.table.columns[name]
        if encoding == "none" or column.nunique(dropna=False) < 2:
            return
        if encoding == "words":
            yield from filter(self._is_common, columns_of_words(column, self.table.rare))
            return
        try:
            column = days(column) if encoding == "date" else as_numbers(column)
        except ValueError as error:
            raise InvalidArgumentError(
                f"`columns` must encode {name!r} as 'words' or 'none', whose cells are not what "
                f"{encoding!r} needs: {str(error).partition('. ')[0]}. Leave such cells empty in "
                "the data and make the task again to encode the others so."
            ) from error
        if np.isinf(column).any():
            raise InvalidArgumentError(
                f"`columns` must have finite numbers in {name!r}, got inf; leave it out"
            )
        if encoding == "log" and column.min() < 0:
            raise InvalidArgumentError(
                f"`columns` must encode {name!r} as 'number', since {column.min():g} is below 0"
            )
        numbers, *missing = columns_of_numbers(column, log=encoding == "log")
        yield from (numbers, *filter(self._is_common, missing))

    def _is_common(self, indicator: NDArray[np.float64]) -> bool:
        """Return whether (n,) 0 and 1 vary enough: standardised, a rare one would be far away."""
        return bool(self.table.rare <= indicator.sum() <= len(indicator) - self.table.rare)


def days(column: Any) -> Any:
    """Return dates as ISO 8601 writes them as days since 1970, NaN where one is missing."""
    import pandas

    known = column.where([not is_missing(cell) for cell in column.fillna("")])
    moments = pandas.to_datetime(known, format="ISO8601", utc=True)
    return (moments - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)


MOST_CLASSES: Final = 100
MOST_NUMBERS: Final = 20
"""Distinct numbers of a target that are taken for classes."""
GIVES_AWAY, MAJORITY = 0.98, 0.95
"""Accuracy of one column alone from which on it gives the target away, where the most frequent
class has a smaller share than the second number."""
LARGE: Final = 1e30
DAY: Final = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}")
MOST: Final = 0.5
"""Share of the cells of a column above which the others are said to be odd."""
LOOKED_AT: Final = 5_000
"""Rows that are asked whether a column gives the target away."""


class Inspection(NamedTuple):
    """What was found."""

    columns: dict[str, str]  # an encoding for each column
    rare: int  # rows that a column of 0 and 1 must have of 0 and of 1
    notes: tuple[str, ...]  # what was done, and why, a sentence each


def inspect(frame: Any, target: str, client: str | None, leave_out: Sequence[str]) -> Inspection:
    """Look at a data frame and say how its columns are encoded.

    Raises:
        InvalidArgumentError: a column is not there, or the target is no class.
    """
    for argument, name in (("target", target), ("client", client)):
        if name is not None and name not in frame:
            advice = separator_advice(name, frame) or suggest(name, frame)
            raise InvalidArgumentError(
                f"`{argument}` must be a column of the data, got {name!r}.{advice}"
            )
    for name in leave_out:
        require_known("column", name, [one for one in frame if one not in (target, client)])
    whole = len(frame)
    frame = frame.dropna(subset=[target, *filter(None, [client])])
    notes = list(_of_target(frame, target))
    if whole > len(frame):
        notes.append(f"{whole - len(frame)} of {whole} rows have no {target} or client: left out.")
    if client is not None:
        notes += _of_clients(frame, client)
    rare = min(RARE, max(2, len(frame) // 50))
    columns: dict[str, str] = {}
    for name in frame:
        if name not in (target, client):
            asked = "none", "as asked"
            encoding, said = asked if name in leave_out else _encoding(frame, name, client, rare)
            columns[name] = encoding
            if said:
                out = " is left out" * (encoding == "none")
                notes.append(f"Column {name!r}{out}: {said}.")
    kept = [name for name, encoding in columns.items() if encoding != "none"]
    if not kept:
        raise InvalidArgumentError(
            "`data` must have a column to learn from, besides target and client, got none. "
            + " ".join(note for note in notes if " is left out: " in note)
        )
    notes += _giving_away(frame, target, kept)
    return Inspection(columns, rare, tuple(notes))


def _of_target(frame: Any, target: str) -> Iterator[str]:
    counts = frame[target].value_counts()
    # Whole numbers may be codes of classes.
    numeric = frame[target].dtype.kind == "f" and (frame[target] % 1 != 0).any()
    if len(counts) < 2:
        raise InvalidArgumentError(
            f"`target` must have at least two values, got {len(counts)} of {target!r} in "
            f"{len(frame)} rows"
        )
    if len(counts) > (MOST_NUMBERS if numeric else MOST_CLASSES):
        raise InvalidArgumentError(
            f"`target` must have 2 to {MOST_CLASSES} classes, at most {MOST_NUMBERS} where they "
            f"are real numbers, got {len(counts)} values of {target!r}; what is trained are "
            "classifiers: cut numbers into classes first, as by `pandas.qcut(frame[target], 4)`"
        )
    shares = ", ".join(
        f"{label} {count / len(frame):.0%}" for label, count in counts.head(6).items()
    )
    yield f"Target {target!r} has {len(counts)} classes: {shares}{', ...' * (len(counts) > 6)}."
    if few := [str(label) for label, count in counts.items() if count < 10]:
        yield (
            "Classes of fewer than 10 rows may be missing where it is validated: "
            f"{', '.join(few[:6])}{', ...' * (len(few) > 6)}."
        )


def _of_clients(frame: Any, client: str) -> Iterator[str]:
    sizes = frame[client].value_counts()
    if len(sizes) < 2:
        raise InvalidArgumentError(
            f"`client` must say of two clients at least, got {len(sizes)} in {client!r}; leave it "
            "out and give `clients`, a number, to deal the rows to"
        )
    yield (
        f"{len(sizes):,} clients by {client!r}, of {sizes.min():,} to {sizes.max():,} rows "
        f"(median {sizes.median():g})."
    )
    if few := int((sizes < 3).sum()):
        if few == len(sizes):
            raise InvalidArgumentError(
                f"`client` must say of a client with 3 rows at least, or nothing is validated, got "
                f"at most {sizes.max()} in {client!r}; leave it out and give `clients`, a number"
            )
        yield (
            f"{few:,} {'client has' if few == 1 else 'clients have'} fewer than 3 rows, all for "
            "training or testing: none is validated; `fewest` in the task file leaves them out."
        )


def _encoding(frame: Any, name: str, client: str | None, rare: int) -> tuple[str, str]:
    import pandas

    column = frame[name]
    codes, values = pandas.factorize(column)
    missing, distinct = int((codes < 0).sum()), len(values)
    if distinct + (missing > 0) < 2:
        return "none", "it has one value"
    if client is not None and 1 < distinct == frame[client].nunique():
        pairs = (codes + 1) * distinct + pandas.factorize(frame[client])[0]
        if len(np.unique(pairs)) == distinct:
            return "none", "it says who the client is"
    if column.dtype.kind in "iufb":
        where = "a column of 0 and 1 says where" if missing >= rare else "the mean stands there"
        said = f"{missing:,} numbers are missing, {where}" if missing else ""
        if distinct == len(frame) and column.dtype.kind == "i":
            said = "its whole numbers are all different; if they are an id, `--leave-out` it"
        return ("log" if grows(column) else "number"), said
    if all(map(DATE.match, values)):
        with suppress(ValueError):
            days(column)
            return "date", "dates are days since 1970"
    rows = np.bincount(codes + 1, minlength=distinct + 1)  # those of missing cells first
    hint = "; ".join(_almost(column, dict(zip(values, rows[1:].tolist(), strict=True))))
    if distinct > len(frame) / 2:
        said = hint or "so it is an id or a text"
        return "none", f"it has {distinct:,} values in {len(frame):,} rows, {said}"
    few = rows[(rows > 0) & (rows < rare)]
    if (others := len(frame) - rows.max()) < rare:
        return "none", f"all but {others:,} rows have one value"
    share = "share a column" if few.sum() >= rare else "have no column"
    said = f"{len(few):,} words of fewer than {rare} rows {share}" if len(few) else ""
    return "words", "; ".join(filter(None, [said, hint]))


def _almost(column: Any, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield what words, in so many rows each, may have been meant to be."""
    counts = {word: count for word, count in rows.items() if not is_missing(word)}
    total = sum(counts.values())
    odd = [word for word in counts if not NUMBER.fullmatch(word)]
    plain = [word for word in counts if NUMBER.fullmatch(MARKS.sub("", word))]
    if odd and sum(map(counts.__getitem__, plain)) > MOST * total:
        cells = column[column.isin(odd)]
        yield (
            f"{len(cells):,} of {total:,} cells are no numbers, such as {cells.iloc[0]!r:.40} in "
            f"row {cells.index[0] + 1}; numbers are written as 1234.5, without other marks"
        )
    dates = [word for word in counts if DAY.match(word)]
    if sum(map(counts.__getitem__, dates)) > MOST * total:
        example = f"{dates[0]!r:.40}"
        yield f"dates, such as {example}, must all be as 2026-05-31 and before 2262 to be days"


def _giving_away(frame: Any, target: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each column that alone tells the target, by a tree of one column."""
    with require_optional("looking at a table", "scikit-learn", "data", "sklearn", "pandas"):
        import pandas
        from sklearn.model_selection import StratifiedKFold
        from sklearn.tree import DecisionTreeClassifier
    frame = frame.sample(min(len(frame), LOOKED_AT), random_state=0)
    labels, classes = pandas.factorize(frame[target].astype(str), sort=True)
    counts = np.bincount(labels)
    if counts.max() / len(labels) > MAJORITY or counts.min() < 2:
        return
    halves, leaves = [*StratifiedKFold(2).split(labels, labels)], 8 * len(classes)
    for name in tqdm(names, "looking at columns", delay=2, leave=False, unit="column"):
        column = frame[name]
        if column.dtype.kind not in "iufb":
            column = pandas.Series(pandas.factorize(column.astype(str), sort=True)[0])
        cells = np.nan_to_num(column.to_numpy(dtype=np.float64), nan=-1.0)[:, None]
        cells = np.clip(cells, -LARGE, LARGE).astype(np.float32)
        most = [_most_told(cells[half, 0], labels[half], leaves) for _, half in halves]
        if np.mean(most) < GIVES_AWAY:
            continue
        tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0)
        told = [
            (tree.fit(cells[a], labels[a]).predict(cells[b], check_input=False) == labels[b]).mean()
            for a, b in halves
        ]
        accuracy = float(np.mean(told))
        if accuracy >= GIVES_AWAY:
            yield (
                f"WARNING: column {name!r} alone tells {target!r} in {accuracy:.1%} of all rows: "
                "it seems to be known only with the target. `--leave-out` leaves it out."
            )


def _most_told(cells: NDArray[np.float32], labels: NDArray[np.intp], leaves: int) -> float:
    """Return an accuracy that no tree of so many leaves exceeds on (n,) cells and labels.

    A leaf is an interval of cells. Of r runs of equal labels in it, r // 2 at least are wrong.
    It takes microseconds, and a tree a thousand times as long.
    """
    ordered = labels[np.argsort(cells, kind="stable")]
    runs = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    return 1 - max(0, runs - leaves) / (2 * len(labels))
