"""Tables of users: their description in task files, their encoding, and their inspection.

`fedhpo-gym new` calls `inspect_table`, which chooses an encoding for each column and explains its
choices in notes. The result is stored as an `OwnTable` in a task file. An `OwnSource` encodes the
table by this description whenever the data or the task file changes. Client and target columns are
never features, and a column that reveals the target is reported.
"""

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
    NUMBER,
    NUMBER_MARKS,
    check_csv_size,
    is_missing,
    separator_advice,
    words_to_floats,
)
from fedhpo_gym.data.natural import MIN_VALUE_ROWS, encode_numbers, encode_words, is_skewed
from fedhpo_gym.data.records import Dataset, Source, make_dataset

ENCODINGS: Final[Mapping[str, str]] = {
    "number": "as it is; where `rare` rows lack it, a column of 0 and 1 says which",
    "log": "log(1 + x), for numbers that are never below 0",
    "date": "days since 1970, of dates such as 2026-05-31 or 2026-05-31 12:00",
    "words": "a column of 0 and 1 for each value of `rare` rows, and one for all other values",
    "none": "left out",
}
"""Encodings of a column, with their descriptions."""
MAX_NAME_LENGTH: Final = 64
SPLITS: Final[Mapping[str, str]] = {"60/20/20": "user", "80/10/10": "user-80-10-10"}
"""Split of the rows of a client -> name of the partition."""


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """The description of a table, as a task file has it.

    Attributes:
        name: name in ids: a capital letter, then letters and digits.
        data: name of the CSV file beside the task file.
        sha256: checksum of the CSV file.
        target: column to predict; its values are classes, sorted as words.
        columns: one of `ENCODINGS` for each column except target and client.
        client: column of the client of each row; None to distribute rows to `clients`.
        clients: number of clients to distribute rows to, by latent Dirichlet allocation.
        alpha: concentration of the latter, as in `make_federation`.
        split: split of a client's rows, one of `SPLITS`; distributed rows are split 80/10/10.
        fewest: clients with fewer rows are dropped.
        rare: fewest zeros and fewest ones of an indicator column; others are dropped.
        version: increased with every change of the description; part of ids.
        unseen: whether ids with unseen test clients exist, too; these need five clients.
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
        """Check all entries, and that the file is beside the task file."""
        check_fields(self)
        is_plain = self.name.isascii() and self.name.isalnum() and len(self.name) <= MAX_NAME_LENGTH
        if not (is_plain and self.name[:1].isupper()) or self.name.endswith("Unseen"):
            raise InvalidArgumentError(
                "`name` must be a capital letter, then letters and digits, at most "
                f"{MAX_NAME_LENGTH}, such as 'Passed', and not end in 'Unseen', got "
                f"{short_repr(self.name)}"
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
        if misplaced := [name for name in (self.target, self.client) if name in self.columns]:
            raise InvalidArgumentError(
                "`columns` must name neither the target nor the client, got "
                f"{short_repr(misplaced[0])}"
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
        """Name of the partition into clients."""
        return "lda" if self.client is None else SPLITS[self.split]


@dataclass(frozen=True, kw_only=True)
class OwnSource(Source):
    """The source of a user's table, which is encoded once, and again when a file changes."""

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
        """Return (n, columns) float64 features, with NaN for missing numbers."""
        data = self.path.with_name(self.table.data)
        if not path_exists(data):
            raise DamagedDataError(f"{data} is missing: {self.path} describes it; {self.again}")
        if data.resolve().parent != self.path.resolve().parent:
            raise DamagedDataError(f"{data} is a link to elsewhere: copy what it leads to")
        try:
            digest = cache.file_sha256(data)
        except OSError as error:
            raise DamagedDataError(f"{data} cannot be read ({error.strerror})") from error
        if digest != self.table.sha256:
            raise DamagedDataError(
                f"{data} has sha256 {digest}, and {self.path} was made for another; {self.again}"
            )
        name = f"own2-{self.table.name}"
        arrays = cache.derive_arrays(
            name, [data, self.path], lambda: self._encode_or_explain(data), self.repair
        )
        users = arrays["users"] if len(arrays["users"]) else None
        classes = int(arrays["labels"].max()) + 1
        return make_dataset(self.name, arrays["features"], arrays["labels"], classes, users)

    def check(self, dataset: Dataset) -> None:
        """No check: its only documentation is the description by which it was encoded."""

    def _encode_or_explain(self, data: Path) -> dict[str, NDArray[Any]]:
        try:
            return self.encode(data)
        except (
            InvalidArgumentError
        ) as error:  # the data have their checksum, so the description is wrong
            raise DamagedDataError(f"{self.path} does not fit {data.name}: {error}") from error

    def encode(self, data: Path) -> dict[str, NDArray[Any]]:
        """Return features, labels and users of a file.

        Raises:
            InvalidArgumentError: the description does not fit the file.
        """
        with require_optional(f"data set {self.name}", "pandas", "data", "pandas"):
            import pandas
        table = self.table
        label_columns = [table.target, *filter(None, [table.client])]
        # All cells are read as words, to convert numbers exactly; empty cells are missing.
        check_csv_size(data.read_bytes(), data)
        frame = pandas.read_csv(
            data, dtype=str, compression=None, keep_default_na=False, na_values=[""]
        )
        if missing := {*label_columns, *table.columns} - {*frame}:
            raise InvalidArgumentError(
                "`target`, `client` and `columns` must name columns of the data, got "
                f"{sorted(missing)}"
            )
        frame = self._select_rows(frame)
        features: list[NDArray[np.float64]] = []
        for name in table.columns:
            for column in self._encode_column(frame, name):
                features.append(column)
                require_growth(column.nbytes * len(features), data.stat().st_size, data)
        if not features:
            raise InvalidArgumentError("`columns` must leave one column in, got none that varies")
        codes = [
            pandas.factorize(frame[name], sort=True)[0].astype(np.int64) for name in label_columns
        ]
        return {
            "features": np.stack(features, axis=1),
            "labels": codes[0],
            "users": codes[1] if table.client else np.empty(0, np.int64),
        }

    def _select_rows(self, frame: Any) -> Any:
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

    def _encode_column(self, frame: Any, name: str) -> Iterator[NDArray[np.float64]]:
        column, encoding = frame[name], self.table.columns[name]
        if encoding == "none" or column.nunique(dropna=False) < 2:
            return
        if encoding == "words":
            yield from filter(self._is_common, encode_words(column, self.table.rare))
            return
        try:
            column = dates_to_days(column) if encoding == "date" else words_to_floats(column)
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
        numbers, *missing = encode_numbers(column, log=encoding == "log")
        yield from (numbers, *filter(self._is_common, missing))

    def _is_common(self, indicator: NDArray[np.float64]) -> bool:
        """Return whether (n,) zeros and ones vary enough; a rare value would be an outlier."""
        return bool(self.table.rare <= indicator.sum() <= len(indicator) - self.table.rare)


def dates_to_days(column: Any) -> Any:
    """Return ISO 8601 dates as days since 1970, with NaN for missing ones."""
    import pandas

    present = column.where([not is_missing(cell) for cell in column.fillna("")])
    times = pandas.to_datetime(present, format="ISO8601", utc=True)
    return (times - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)


MAX_CLASSES: Final = 100
MAX_NUMERIC_CLASSES: Final = 20
"""Largest number of distinct real numbers of a target that count as classes."""
LEAK_ACCURACY, MAX_CLASS_SHARE = 0.98, 0.95
"""Accuracy of a single column above which it is reported to reveal the target, unless the share of
the largest class exceeds the second number."""
LARGE: Final = 1e30
DATE_LIKE: Final = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}")
MAJORITY_SHARE: Final = 0.5
"""Share of cells of one kind in a column above which the other cells are reported."""
MAX_INSPECTED_ROWS: Final = 5_000
"""Largest number of rows to test whether a column reveals the target."""


class Inspection(NamedTuple):
    """The result of inspecting a table."""

    columns: dict[str, str]  # an encoding for each column
    rare: int  # fewest zeros and fewest ones of an indicator column
    notes: tuple[str, ...]  # decisions and their reasons, a sentence each


def inspect_table(
    frame: Any, target: str, client: str | None, leave_out: Sequence[str]
) -> Inspection:
    """Return an encoding for each column of a data frame, and notes about the decisions.

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
        require_known("column", name, [other for other in frame if other not in (target, client)])
    total = len(frame)
    frame = frame.dropna(subset=[target, *filter(None, [client])])
    notes = list(_describe_target(frame, target))
    if total > len(frame):
        notes.append(f"{total - len(frame)} of {total} rows have no {target} or client: left out.")
    if client is not None:
        notes += _describe_clients(frame, client)
    rare = min(MIN_VALUE_ROWS, max(2, len(frame) // 50))
    columns: dict[str, str] = {}
    for name in frame:
        if name not in (target, client):
            dropped = "none", "as asked"
            encoding, why = (
                dropped if name in leave_out else _choose_encoding(frame, name, client, rare)
            )
            columns[name] = encoding
            if why:
                verdict = " is left out" * (encoding == "none")
                notes.append(f"Column {name!r}{verdict}: {why}.")
    used_columns = [name for name, encoding in columns.items() if encoding != "none"]
    if not used_columns:
        raise InvalidArgumentError(
            "`data` must have a column to learn from, besides target and client, got none. "
            + " ".join(note for note in notes if " is left out: " in note)
        )
    notes += _find_leaks(frame, target, used_columns)
    return Inspection(columns, rare, tuple(notes))


def _describe_target(frame: Any, target: str) -> Iterator[str]:
    counts = frame[target].value_counts()
    # Integers may be codes of classes.
    numeric = frame[target].dtype.kind == "f" and (frame[target] % 1 != 0).any()
    if len(counts) < 2:
        raise InvalidArgumentError(
            f"`target` must have at least two values, got {len(counts)} of {target!r} in "
            f"{len(frame)} rows"
        )
    if len(counts) > (MAX_NUMERIC_CLASSES if numeric else MAX_CLASSES):
        raise InvalidArgumentError(
            f"`target` must have 2 to {MAX_CLASSES} classes, at most {MAX_NUMERIC_CLASSES} where "
            f"they are real numbers, got {len(counts)} values of {target!r}; what is trained are "
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


def _describe_clients(frame: Any, client: str) -> Iterator[str]:
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


def _choose_encoding(frame: Any, name: str, client: str | None, rare: int) -> tuple[str, str]:
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
        handling = "a column of 0 and 1 says where" if missing >= rare else "the mean stands there"
        note = f"{missing:,} numbers are missing, {handling}" if missing else ""
        if distinct == len(frame) and column.dtype.kind == "i":
            note = "its whole numbers are all different; if they are an id, `--leave-out` it"
        return ("log" if is_skewed(column) else "number"), note
    if all(map(DATE.match, values)):
        with suppress(ValueError):
            dates_to_days(column)
            return "date", "dates are days since 1970"
    rows = np.bincount(codes + 1, minlength=distinct + 1)  # those of missing cells first
    hint = "; ".join(_guess_meaning(column, dict(zip(values, rows[1:].tolist(), strict=True))))
    if distinct > len(frame) / 2:
        note = hint or "so it is an id or a text"
        return "none", f"it has {distinct:,} values in {len(frame):,} rows, {note}"
    few = rows[(rows > 0) & (rows < rare)]
    if (others := len(frame) - rows.max()) < rare:
        return "none", f"all but {others:,} rows have one value"
    share = "share a column" if few.sum() >= rare else "have no column"
    note = f"{len(few):,} words of fewer than {rare} rows {share}" if len(few) else ""
    return "words", "; ".join(filter(None, [note, hint]))


def _guess_meaning(column: Any, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield what words, with numbers of rows, may be intended to be."""
    counts = {word: count for word, count in rows.items() if not is_missing(word)}
    total = sum(counts.values())
    non_numbers = [word for word in counts if not NUMBER.fullmatch(word)]
    near_numbers = [word for word in counts if NUMBER.fullmatch(NUMBER_MARKS.sub("", word))]
    if non_numbers and sum(map(counts.__getitem__, near_numbers)) > MAJORITY_SHARE * total:
        cells = column[column.isin(non_numbers)]
        yield (
            f"{len(cells):,} of {total:,} cells are no numbers, such as {cells.iloc[0]!r:.40} in "
            f"row {cells.index[0] + 1}; numbers are written as 1234.5, without other marks"
        )
    dates = [word for word in counts if DATE_LIKE.match(word)]
    if sum(map(counts.__getitem__, dates)) > MAJORITY_SHARE * total:
        example = f"{dates[0]!r:.40}"
        yield f"dates, such as {example}, must all be as 2026-05-31 and before 2262 to be days"


def _find_leaks(frame: Any, target: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each column that alone predicts the target, by a decision tree."""
    with require_optional("looking at a table", "scikit-learn", "data", "sklearn", "pandas"):
        import pandas
        from sklearn.model_selection import StratifiedKFold
        from sklearn.tree import DecisionTreeClassifier
    frame = frame.sample(min(len(frame), MAX_INSPECTED_ROWS), random_state=0)
    labels, classes = pandas.factorize(frame[target].astype(str), sort=True)
    counts = np.bincount(labels)
    if counts.max() / len(labels) > MAX_CLASS_SHARE or counts.min() < 2:
        return
    folds, leaves = [*StratifiedKFold(2).split(labels, labels)], 8 * len(classes)
    for name in tqdm(names, "looking at columns", delay=2, leave=False, unit="column"):
        column = frame[name]
        if column.dtype.kind not in "iufb":
            column = pandas.Series(pandas.factorize(column.astype(str), sort=True)[0])
        cells = np.nan_to_num(column.to_numpy(dtype=np.float64), nan=-1.0)[:, None]
        cells = np.clip(cells, -LARGE, LARGE).astype(np.float32)
        bounds = [_accuracy_bound(cells[fold, 0], labels[fold], leaves) for _, fold in folds]
        if np.mean(bounds) < LEAK_ACCURACY:
            continue
        tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0)
        accuracies = [
            (
                tree.fit(cells[train], labels[train]).predict(cells[test], check_input=False)
                == labels[test]
            ).mean()
            for train, test in folds
        ]
        accuracy = float(np.mean(accuracies))
        if accuracy >= LEAK_ACCURACY:
            yield (
                f"WARNING: column {name!r} alone tells {target!r} in {accuracy:.1%} of all rows: "
                "it seems to be known only with the target. `--leave-out` leaves it out."
            )


def _accuracy_bound(cells: NDArray[np.float32], labels: NDArray[np.intp], leaves: int) -> float:
    """Return an upper bound on the accuracy of a tree with these leaves on (n,) cells and labels.

    A leaf is an interval of cells. Of r runs of equal labels in it, at least r // 2 are wrong.
    The bound takes microseconds, and fitting a tree about a thousand times as long.
    """
    ordered = labels[np.argsort(cells, kind="stable")]
    runs = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    return 1 - max(0, runs - leaves) / (2 * len(labels))
