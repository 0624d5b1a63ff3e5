"""Run records as Parquet files: `read_judged` reads some columns, `read_columns` all of a file.

A file has a row per step. Its columns are the leaves of a step, and the environment's id, the agent
and the seed. Its metadata hold the header, what the columns are, and two digests: one of all steps,
which is that of other forms of the record, and a quick one of the bytes of the file.
"""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.arrow_files import require_sound
from fedhpo_gym.core.checks import FOREIGN_ERRORS
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    OtherFormatError,
    TooLargeError,
    require_optional,
)
from fedhpo_gym.core.files import load_json, new_file
from fedhpo_gym.records.incumbents import Trials
from fedhpo_gym.records.record import FORMAT as RUN_FORMAT
from fedhpo_gym.records.record import (
    NUMBERS,
    START,
    Header,
    RunRecord,
    StepRecord,
    require_format,
    seal,
    to_dict,
)
from fedhpo_gym.records.runs import COSTS, Course, Described, JudgedRun
from fedhpo_gym.space.per_client import shared_names

KINDS: Final = ("bool", "int64", "double", "string", "list<double>", "json")
"""Types of entries; the first five are called as in Arrow."""
_LARGEST: Final = 2**63


@dataclass(frozen=True)
class Column:
    """One leaf of all rows: the names that lead to it, one of `KINDS`, and its values or None."""

    path: tuple[str, ...]
    kind: str
    values: Sequence[Any]

    @property
    def name(self) -> str:
        """What readers of tables call it."""
        return ".".join(self.path)


def to_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the leaves of some rows as columns, in the order in which they first appear."""
    found: dict[tuple[str, ...], list[Any]] = defaultdict(lambda: [None] * len(rows))
    for place, row in enumerate(rows):
        for path, value in leaves(row):
            found[path][place] = value
    return [_typed(path, values) for path, values in found.items()]


def from_columns(columns: Sequence[Column], length: int) -> list[dict[str, Any]]:
    """Return the rows that `to_columns` was given."""
    rows: list[dict[str, Any]] = [{} for _ in range(length)]
    decoded = _decoded([column.values for column in columns if column.kind == "json"])
    for column in columns:
        *parents, last = column.path
        values = next(decoded) if column.kind == "json" else column.values
        for row, value in zip(rows, values, strict=True):
            if value is None:
                continue
            inner = row
            for name in parents:
                inner = inner.setdefault(name, {})
            inner[last] = value
    return rows


def _decoded(columns: Sequence[Sequence[str | None]]) -> Iterator[list[Any]]:
    """Yield columns of JSON words as what they say, None for None; all are counted together."""
    whole = (",".join(word or "null" for word in column) for column in columns)
    yield from load_json(f"[{','.join(f'[{one}]' for one in whole)}]".encode(), "its words")


def leaves(
    value: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what is in nested mappings, each with the names that lead to it."""
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from leaves(item, (*path, name))
        else:
            yield (*path, name), item


def _typed(path: tuple[str, ...], values: Sequence[Any]) -> Column:
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) == 1 and (kind := kinds.pop()) != "json":
        return Column(path, kind, values)
    return Column(path, "json", [None if value is None else json.dumps(value) for value in values])


def _kind(value: Any) -> str:
    if isinstance(value, list) and all(type(item) is float for item in value):
        return "list<double>"
    if type(value) is int and not -_LARGEST <= value < _LARGEST:
        return "json"
    return {bool: "bool", int: "int64", float: "double", str: "string"}.get(type(value), "json")


SUFFIX: Final = ".parquet"
FORMAT: Final = 2
_KEY: Final = b"fedhpo_gym"
_BYTES: Final = b"fedhpo_gym.bytes"
_LENGTH: Final = 64
"""Letters of the digest of the bytes."""
_ROWS: Final = 16384
"""Rows of a group: what is read of a file to know one of them."""
_CONSTANT: Final = ("id", "agent", "seed")
_TIME, _VALUE = "elapsed_s", "objectives.val_loss"
_TRUE: Final = "truth.objectives.val_loss"
"""What a noisy validation loss truly is: a column where evaluations are noisy."""
_TEST, _ACCURACY, _VIOLATION = "test.loss", "test.accuracy", "violation"


class _Read(NamedTuple):
    """A file, and what its metadata say."""

    file: Any
    header: Header
    about: Mapping[str, Any]

    def check_bytes(self, path: Path) -> None:
        """Refuse a file of which a byte was changed since it was written."""
        content = path.read_bytes()
        place = _digest_place(content, self.file.schema_arrow.metadata[_KEY])
        if _digest_of_bytes(content, place) != content[place : place + _LENGTH]:
            raise ValueError("the digest of its bytes is wrong: it was changed")

    def numbers(self, names: Sequence[str]) -> dict[str, Floats]:
        """Return columns of numbers by name: (N,) each."""
        table = self.file.read(columns=[*dict.fromkeys(names)])
        found = {}
        for name in table.column_names:
            column = table.column(name)
            if self.about["columns"][name]["kind"] == "json":
                (values,) = _decoded([column.to_pylist()])
                found[name] = np.array(values, dtype=np.float64)
            else:
                found[name] = np.asarray(column.to_numpy(), dtype=np.float64)
        return found


def is_installed() -> bool:
    """Return whether records can be columnar here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def write_columns(path: Path, record: RunRecord) -> None:
    """Write a record as a Parquet file; a crash leaves the old file, if any."""
    rows = [to_dict(step) for step in record.steps]
    store(path, record.header, to_columns(rows), _digest(record.header, rows))


def store(path: Path, header: Header, columns: Sequence[Column], digest: str) -> None:
    """Write columns, which a program has already, as the record of a run."""
    arrow, _ = _arrow()
    types = _types(arrow)
    if clash := {column.name for column in columns} & {*_CONSTANT}:
        raise InvalidArgumentError(f"`extra` must not hold {sorted(clash)}: columns have the name")
    length = len(columns[0].values)
    arrays = {name: arrow.repeat(getattr(header, name), length) for name in _CONSTANT}
    for column in columns:
        arrays[column.name] = arrow.array(column.values, types[column.kind])
    about = {
        "format": FORMAT,
        "header": to_dict(header),
        "columns": {c.name: {"path": c.path, "kind": c.kind} for c in columns},
        "digest": digest,
    }
    store_table(path, arrow.table(arrays), about)


def store_table(path: Path, table: Any, about: Mapping[str, Any]) -> None:
    """Write a table of Arrow with its metadata and the digest of the file's bytes."""
    _, parquet = _arrow()
    words = json.dumps(about).encode("utf-8")
    metadata = {_KEY: words, _BYTES: _mark(words) + b"0" * _LENGTH}
    buffer = io.BytesIO()
    parquet.write_table(
        table.replace_schema_metadata(metadata),
        buffer,
        compression="lz4",
        row_group_size=_ROWS,
        write_page_checksum=True,
    )
    content = buffer.getvalue()
    place = _digest_place(content, words)
    sealed = _digest_of_bytes(content, place).join((content[:place], content[place + _LENGTH :]))
    with new_file(path) as handle:
        handle.write(sealed)


def _types(arrow: Any) -> Mapping[str, Any]:
    """Return the type of Arrow of each kind."""
    return {
        "bool": arrow.bool_(), "int64": arrow.int64(), "double": arrow.float64(),
        "string": arrow.string(), "list<double>": arrow.list_(arrow.float64()),
        "json": arrow.string(),
    }  # fmt: skip


def read_columns(path: Path) -> RunRecord:
    """Read a whole record and check all of it."""
    with _opened(path) as found:
        found.check_bytes(path)
        table = found.file.read()
        columns = [
            Column(tuple(one["path"]), one["kind"], table.column(name).to_pylist())
            for name, one in found.about["columns"].items()
        ]
        rows = from_columns(columns, table.num_rows)
        if _digest(found.header, rows) != found.about["digest"]:
            raise ValueError("its digest is wrong: it was changed")
        return RunRecord(found.header, tuple(map(StepRecord.from_dict, rows)))


def read_judged(path: Path) -> JudgedRun:
    """Read only what a `JudgedRun` needs of a record, and check the bytes of the file."""
    with _opened(path) as found:
        names = found.about["columns"]
        if _VALUE in names and names["reward"]["kind"] == "double":
            found.check_bytes(path)
            return _judged(path, found)
    return JudgedRun.of(read_columns(path))  # says what is missing, and has vectors


def _judged(path: Path, found: _Read) -> JudgedRun:
    names = found.about["columns"]
    word = next(name for name in NUMBERS if f"incumbent.{name}" in names)
    parts = {name: one["kind"] for name, one in names.items() if one["path"][0] == "fidelity"}
    levels = [name for name, kind in parts.items() if kind != "string" and word == "trial"]
    noisy = [_TRUE] if _TRUE in names else []
    limits = [_VIOLATION] if _VIOLATION in names else []
    best = f"incumbent.{word}"
    costs = {f"cost.{name}": name for name in COSTS if f"cost.{name}" in names}
    tested = [name for name in (_TEST, _ACCURACY) if name in names]
    needed = [_TIME, _VALUE, *tested, *noisy, *limits, best, *costs]
    columns = found.numbers([*needed, *levels])
    _check(columns, needed, columns[_TIME], columns[best])
    # As `level_of` computes it for one trial.
    level = np.prod([columns[name] for name in levels], axis=0) if levels else None
    if word == "trial" and level is None:
        level = np.ones(len(columns[_TIME]))
    trials = Trials(
        time_s=columns[_TIME],
        value=columns[_TRUE if noisy else _VALUE],
        level=level,
        test=columns.get(_TEST),
        observed=columns[_VALUE] if noisy else None,
        violation=columns[_VIOLATION] if limits else None,
        is_course=word == "step",
        recommended=columns[best].astype(np.int64) - 1,
    )
    course = _course(found, columns) if word == "step" else None
    return JudgedRun(
        found.header, trials, columns.get(_ACCURACY), lambda place: _described(path, place), None,
        {name: float(columns[cost].sum()) for cost, name in costs.items()}, course,
    )  # fmt: skip


def _check(
    columns: Mapping[str, Floats], needed: Sequence[str], time_s: Floats, best: Floats
) -> None:
    """Refuse columns of which `RunRecord` would refuse the steps."""
    if odd := [name for name in needed if not np.isfinite(columns[name]).all()]:
        raise ValueError(f"column {odd[0]!r} must have a finite number in each row")
    if not len(time_s) or (np.diff(time_s, prepend=0.0) < 0.0).any():
        raise ValueError("it must have rows, and time must not run backwards")
    if ((best < 1) | (best > np.arange(1, len(best) + 1))).any():
        raise ValueError("it has the incumbent of a step that has not been")


def _course(found: _Read, columns: Mapping[str, Any]) -> Course:
    """Return what is said of a course, as `Course.of` takes it from a record's steps."""
    paths = {
        name: one["path"]
        for name, one in found.about["columns"].items()
        if one["kind"] in ("double", "int64")
    }
    names = shared_names(n for n, path in paths.items() if path[0] == "configuration")
    values = found.numbers(["reward", *names])
    steps = np.ones(len(values["reward"]))
    schedule = {paths[name][-1]: values[name] for name in names}
    rounds = np.cumsum(columns.get("cost.rounds", steps))
    return Course(columns[_TIME], rounds, np.cumsum(values["reward"]), schedule)


def _described(path: Path, place: int) -> Described:
    with _opened(path, is_sound=True) as found:
        group, row = divmod(place, _ROWS)
        parts = (["configuration"], ["fidelity"], ["objectives"], ["truth", "objectives"])
        names = {
            name: one
            for name, one in found.about["columns"].items()
            if any(one["path"][: len(part)] == part for part in parts)
        }
        table = found.file.read_row_group(group, columns=[*names]).slice(row, 1)
        columns = [
            Column(tuple(one["path"]), one["kind"], table.column(name).to_pylist())
            for name, one in names.items()
        ]
    content = from_columns(columns, 1)[0]
    objectives = (content.get("truth") or content).get("objectives", {})
    return content.get("configuration", {}), content.get("fidelity", {}), objectives


@contextmanager
def _opened(path: Path, is_sound: bool = False) -> Iterator[_Read]:
    """Give a file with its checked metadata; all that pyarrow and damage raise is one error.

    Args:
        path: the file.
        is_sound: whether another process has read all of it already.
    """
    arrow, parquet = _arrow()
    types = _types(arrow)
    damage = (arrow.ArrowException, OSError, StopIteration, *FOREIGN_ERRORS)
    with ExitStack() as stack:
        try:
            if not is_sound:
                require_sound([path])
            file = stack.enter_context(parquet.ParquetFile(path, page_checksum_verification=True))
            schema = file.schema_arrow
            about = load_json(schema.metadata[_KEY], "its metadata")
            header = about["header"]
            for one, known in ((about, FORMAT), (header, RUN_FORMAT)):
                require_format(path, one["format"], known, header)
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}, not {FORMAT}")
            for name, one in about["columns"].items():
                if one["kind"] not in KINDS:
                    raise ValueError(f"it has columns of kind {one['kind']!r}")
                if (stored := schema.field(name).type) != types[one["kind"]]:
                    raise ValueError(f"column {name!r} of kind {one['kind']!r} is of type {stored}")
            yield _Read(file, Header.from_dict(header), about)
        except (TooLargeError, OtherFormatError):
            raise
        except damage as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise DamagedDataError(
                f"{path}: not a run record: {words}; delete the file and run its command again"
            ) from error


def _digest(header: Header, rows: list[dict[str, Any]]) -> str:
    """Return the digest of header and steps, each as JSON with sorted names."""
    digest = START
    for content in (to_dict(header), *rows):
        line = json.dumps(content, sort_keys=True, allow_nan=False).encode("utf-8")
        _, digest = seal(line, digest)
    return digest


def _mark(words: bytes) -> bytes:
    """Return what stands before the digest of a file's bytes: like nothing else in the file."""
    return hashlib.sha256(words).hexdigest().encode("ascii") + b":"


def _digest_place(content: bytes, words: bytes) -> int:
    """Return where the digest of a file's bytes stands in it."""
    mark = _mark(words)
    place = content.rfind(mark)
    if place < 0:
        raise ValueError("its metadata were changed")
    return place + len(mark)


def _digest_of_bytes(content: bytes, place: int) -> bytes:
    """Return the digest of a file's bytes but those at the place of the digest itself."""
    view = memoryview(content)
    found = hashlib.sha256(view[:place])
    found.update(view[place + _LENGTH :])
    return found.hexdigest().encode("ascii")


def _arrow() -> tuple[Any, Any]:
    with require_optional("columnar records", "pyarrow", "columnar", "pyarrow"):
        import pyarrow as arrow
        from pyarrow import parquet
    return arrow, parquet
