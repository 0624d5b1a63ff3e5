"""Run records as Parquet files, which `fedhpo_gym.records.files` reads and writes.

A file has a row per step. Its columns are the leaves of a step, and the environment's id, the agent
and the seed. Its metadata hold the header, the paths and kinds of the columns, and two digests: one
of all steps, equal to that of other forms of the record, and a quick one of the bytes of the file.
`read_judged_columns` reads only what a report needs, `read_parquet` the complete record.
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
    INCUMBENT_KEYS,
    START,
    Header,
    RunRecord,
    StepRecord,
    require_format,
    seal_line,
    to_dict,
)
from fedhpo_gym.records.runs import COSTS, CourseProgress, JudgedRun, StepDescription
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
    values_by_path: dict[tuple[str, ...], list[Any]] = defaultdict(lambda: [None] * len(rows))
    for index, row in enumerate(rows):
        for path, value in leaves(row):
            values_by_path[path][index] = value
    return [_make_column(path, values) for path, values in values_by_path.items()]


def from_columns(columns: Sequence[Column], length: int) -> list[dict[str, Any]]:
    """Return the rows of `to_columns`."""
    rows: list[dict[str, Any]] = [{} for _ in range(length)]
    decoded = _decode_json([column.values for column in columns if column.kind == "json"])
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


def _decode_json(columns: Sequence[Sequence[str | None]]) -> Iterator[list[Any]]:
    """Yield the values of columns of JSON texts, None for None; one size limit holds for all."""
    texts = (",".join(cell or "null" for cell in column) for column in columns)
    yield from load_json(f"[{','.join(f'[{text}]' for text in texts)}]".encode(), "its words")


def leaves(
    value: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what is in nested mappings, each with the names that lead to it."""
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from leaves(item, (*path, name))
        else:
            yield (*path, name), item


def _make_column(path: tuple[str, ...], values: Sequence[Any]) -> Column:
    kinds = {_kind_of(value) for value in values if value is not None}
    if len(kinds) == 1 and (kind := kinds.pop()) != "json":
        return Column(path, kind, values)
    return Column(path, "json", [None if value is None else json.dumps(value) for value in values])


def _kind_of(value: Any) -> str:
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
"""Rows of a group, the least that is read to return one row."""
_CONSTANT: Final = ("id", "agent", "seed")
_TIME, _VALUE = "elapsed_s", "objectives.val_loss"
_TRUE: Final = "truth.objectives.val_loss"
"""Noise-free validation loss: a column where evaluations are noisy."""
_TEST, _ACCURACY, _VIOLATION = "test.loss", "test.accuracy", "violation"


class _RecordFile(NamedTuple):
    """An open file and its metadata."""

    file: Any
    header: Header
    metadata: Mapping[str, Any]

    def check_bytes(self, path: Path) -> None:
        """Refuse a file of which a byte was changed since it was written."""
        content = path.read_bytes()
        offset = _digest_offset(content, self.file.schema_arrow.metadata[_KEY])
        if _digest_of_bytes(content, offset) != content[offset : offset + _LENGTH]:
            raise ValueError("the digest of its bytes is wrong: it was changed")

    def read_numbers(self, names: Sequence[str]) -> dict[str, Floats]:
        """Return columns of numbers by name: (N,) each."""
        table = self.file.read(columns=[*dict.fromkeys(names)])
        values_by_name = {}
        for name in table.column_names:
            column = table.column(name)
            if self.metadata["columns"][name]["kind"] == "json":
                (values,) = _decode_json([column.to_pylist()])
                values_by_name[name] = np.array(values, dtype=np.float64)
            else:
                values_by_name[name] = np.asarray(column.to_numpy(), dtype=np.float64)
        return values_by_name


def has_pyarrow() -> bool:
    """Return whether records can be columnar here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def write_parquet(path: Path, record: RunRecord) -> None:
    """Write a record as a Parquet file; a crash leaves the old file, if any."""
    rows = [to_dict(step) for step in record.steps]
    store(path, record.header, to_columns(rows), _digest(record.header, rows))


def store(path: Path, header: Header, columns: Sequence[Column], digest: str) -> None:
    """Write columns, which a program has already, as the record of a run."""
    arrow, _ = _import_arrow()
    types = _types(arrow)
    if clash := {column.name for column in columns} & {*_CONSTANT}:
        raise InvalidArgumentError(f"`extra` must not hold {sorted(clash)}: columns have the name")
    length = len(columns[0].values)
    arrays = {name: arrow.repeat(getattr(header, name), length) for name in _CONSTANT}
    for column in columns:
        arrays[column.name] = arrow.array(column.values, types[column.kind])
    metadata = {
        "format": FORMAT,
        "header": to_dict(header),
        "columns": {c.name: {"path": c.path, "kind": c.kind} for c in columns},
        "digest": digest,
    }
    store_table(path, arrow.table(arrays), metadata)


def store_table(path: Path, table: Any, about: Mapping[str, Any]) -> None:
    """Write a table of Arrow with its metadata and the digest of the file's bytes."""
    _, parquet = _import_arrow()
    text = json.dumps(about).encode("utf-8")
    metadata = {_KEY: text, _BYTES: _marker(text) + b"0" * _LENGTH}
    buffer = io.BytesIO()
    parquet.write_table(
        table.replace_schema_metadata(metadata),
        buffer,
        compression="lz4",
        row_group_size=_ROWS,
        write_page_checksum=True,
    )
    content = buffer.getvalue()
    offset = _digest_offset(content, text)
    sealed = _digest_of_bytes(content, offset).join((content[:offset], content[offset + _LENGTH :]))
    with new_file(path) as handle:
        handle.write(sealed)


def _types(arrow: Any) -> Mapping[str, Any]:
    """Return the type of Arrow of each kind."""
    return {
        "bool": arrow.bool_(), "int64": arrow.int64(), "double": arrow.float64(),
        "string": arrow.string(), "list<double>": arrow.list_(arrow.float64()),
        "json": arrow.string(),
    }  # fmt: skip


def read_parquet(path: Path) -> RunRecord:
    """Read a whole record and check all of it."""
    with _open_checked(path) as opened:
        opened.check_bytes(path)
        table = opened.file.read()
        columns = [
            Column(tuple(entry["path"]), entry["kind"], table.column(name).to_pylist())
            for name, entry in opened.metadata["columns"].items()
        ]
        rows = from_columns(columns, table.num_rows)
        if _digest(opened.header, rows) != opened.metadata["digest"]:
            raise ValueError("its digest is wrong: it was changed")
        return RunRecord(opened.header, tuple(map(StepRecord.from_dict, rows)))


def read_judged_columns(path: Path) -> JudgedRun:
    """Read only what a `JudgedRun` needs of a record, and check the bytes of the file."""
    with _open_checked(path) as opened:
        names = opened.metadata["columns"]
        if _VALUE in names and names["reward"]["kind"] == "double":
            opened.check_bytes(path)
            return _read_run(path, opened)
    # Of vector rewards, all columns are needed; of columns that lack, the error names them.
    return JudgedRun.of(read_parquet(path))


def _read_run(path: Path, opened: _RecordFile) -> JudgedRun:
    names = opened.metadata["columns"]
    unit = next(name for name in INCUMBENT_KEYS if f"incumbent.{name}" in names)
    levels = [
        name
        for name, column in names.items()
        if column["path"][0] == "fidelity" and column["kind"] != "string" and unit == "trial"
    ]
    noisy = [_TRUE] if _TRUE in names else []
    limits = [_VIOLATION] if _VIOLATION in names else []
    best = f"incumbent.{unit}"
    costs = {f"cost.{name}": name for name in COSTS if f"cost.{name}" in names}
    test_columns = [name for name in (_TEST, _ACCURACY) if name in names]
    required = [_TIME, _VALUE, *test_columns, *noisy, *limits, best, *costs]
    columns = opened.read_numbers([*required, *levels])
    _check_columns(columns, required, columns[_TIME], columns[best])
    # As `level_of` computes it for one trial.
    level = np.prod([columns[name] for name in levels], axis=0) if levels else None
    if unit == "trial" and level is None:
        level = np.ones(len(columns[_TIME]))
    trials = Trials(
        time_s=columns[_TIME],
        value=columns[_TRUE if noisy else _VALUE],
        level=level,
        test=columns.get(_TEST),
        observed=columns[_VALUE] if noisy else None,
        violation=columns[_VIOLATION] if limits else None,
        is_course=unit == "step",
        recommended=columns[best].astype(np.int64) - 1,
    )
    course = _read_course(opened, columns) if unit == "step" else None
    return JudgedRun(
        opened.header, trials, columns.get(_ACCURACY), lambda n: _describe_step(path, n), None,
        {name: float(columns[cost].sum()) for cost, name in costs.items()}, course,
    )  # fmt: skip


def _check_columns(
    columns: Mapping[str, Floats], required: Sequence[str], time_s: Floats, best: Floats
) -> None:
    """Refuse columns of which `RunRecord` would refuse the steps."""
    if faulty := [name for name in required if not np.isfinite(columns[name]).all()]:
        raise ValueError(f"column {faulty[0]!r} must have a finite number in each row")
    if not len(time_s) or (np.diff(time_s, prepend=0.0) < 0.0).any():
        raise ValueError("it must have rows, and time must not run backwards")
    if ((best < 1) | (best > np.arange(1, len(best) + 1))).any():
        raise ValueError("it has the incumbent of a step that has not been")


def _read_course(opened: _RecordFile, columns: Mapping[str, Any]) -> CourseProgress:
    """Return the progress of a course, as `CourseProgress.of` does for a complete record."""
    paths = {
        name: entry["path"]
        for name, entry in opened.metadata["columns"].items()
        if entry["kind"] in ("double", "int64")
    }
    names = shared_names(n for n, path in paths.items() if path[0] == "configuration")
    values = opened.read_numbers(["reward", *names])
    steps = np.ones(len(values["reward"]))
    schedule = {paths[name][-1]: values[name] for name in names}
    rounds = np.cumsum(columns.get("cost.rounds", steps))
    return CourseProgress(columns[_TIME], rounds, np.cumsum(values["reward"]), schedule)


def _describe_step(path: Path, index: int) -> StepDescription:
    with _open_checked(path, is_sound=True) as opened:
        group, row = divmod(index, _ROWS)
        prefixes = (["configuration"], ["fidelity"], ["objectives"], ["truth", "objectives"])
        names = {
            name: entry
            for name, entry in opened.metadata["columns"].items()
            if any(entry["path"][: len(prefix)] == prefix for prefix in prefixes)
        }
        table = opened.file.read_row_group(group, columns=[*names]).slice(row, 1)
        columns = [
            Column(tuple(entry["path"]), entry["kind"], table.column(name).to_pylist())
            for name, entry in names.items()
        ]
    content = from_columns(columns, 1)[0]
    objectives = (content.get("truth") or content).get("objectives", {})
    return content.get("configuration", {}), content.get("fidelity", {}), objectives


@contextmanager
def _open_checked(path: Path, is_sound: bool = False) -> Iterator[_RecordFile]:
    """Yield a file with its checked metadata; errors of pyarrow and damage become one error.

    Args:
        path: the file.
        is_sound: whether another process has read all of it already.
    """
    arrow, parquet = _import_arrow()
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
            for content, version in ((about, FORMAT), (header, RUN_FORMAT)):
                require_format(path, content["format"], version, header)
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}, not {FORMAT}")
            for name, column in about["columns"].items():
                if column["kind"] not in KINDS:
                    raise ValueError(f"it has columns of kind {column['kind']!r}")
                if (stored := schema.field(name).type) != types[column["kind"]]:
                    raise ValueError(
                        f"column {name!r} of kind {column['kind']!r} is of type {stored}"
                    )
            yield _RecordFile(file, Header.from_dict(header), about)
        except (TooLargeError, OtherFormatError):
            raise
        except damage as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DamagedDataError(
                f"{path}: not a run record: {reason}; delete the file and run its command again"
            ) from error


def _digest(header: Header, rows: list[dict[str, Any]]) -> str:
    """Return the digest of header and steps, each as JSON with sorted names."""
    digest = START
    for content in (to_dict(header), *rows):
        line = json.dumps(content, sort_keys=True, allow_nan=False).encode("utf-8")
        _, digest = seal_line(line, digest)
    return digest


def _marker(metadata: bytes) -> bytes:
    """Return the bytes before the digest of a file's bytes: they occur nowhere else in it."""
    return hashlib.sha256(metadata).hexdigest().encode("ascii") + b":"


def _digest_offset(content: bytes, metadata: bytes) -> int:
    """Return the offset of the digest of a file's bytes."""
    marker = _marker(metadata)
    offset = content.rfind(marker)
    if offset < 0:
        raise ValueError("its metadata were changed")
    return offset + len(marker)


def _digest_of_bytes(content: bytes, offset: int) -> bytes:
    """Return the digest of all bytes of a file except those of the digest itself."""
    view = memoryview(content)
    digest = hashlib.sha256(view[:offset])
    digest.update(view[offset + _LENGTH :])
    return digest.hexdigest().encode("ascii")


def _import_arrow() -> tuple[Any, Any]:
    with require_optional("columnar records", "pyarrow", "columnar", "pyarrow"):
        import pyarrow as arrow
        from pyarrow import parquet
    return arrow, parquet
