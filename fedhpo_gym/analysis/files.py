"""Run records on disk: where they lie, and reading and writing them whole or not at all.

A record is a JSONL file or, of a study with many, a Parquet file: the name's ending says which.
Both hold the same, and reading gives the same record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from fedhpo_gym.analysis import parquet
from fedhpo_gym.analysis.chain import START, opened, sealed
from fedhpo_gym.analysis.records import (
    FORMAT,
    KIND,
    Header,
    RunRecord,
    StepRecord,
    first_fault,
    is_old,
    step_builder,
    to_dict,
)
from fedhpo_gym.analysis.trajectories.runs import JudgedRun
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.files import new_file
from fedhpo_gym.typed import checked_types

SUFFIX = ".jsonl"
SUFFIXES = (SUFFIX, parquet.SUFFIX)
_NAME = re.compile(r".+-seed\d+-[0-9a-f]{10}\.(jsonl|parquet)")
"""Names as `record_path` makes them; other files are not ours to rename."""
_REPAIR = "; delete the file and run its `fedhpo-gym run` again"

_Line = TypeVar("_Line", Header, StepRecord)
_Run = TypeVar("_Run", RunRecord, JudgedRun)


@checked_types
def record_path(folder: Path, header: Header) -> Path:
    """Return where the record of a run belongs.

    The name holds a digest of the environment's spec, fingerprint and workers: runs under other
    settings, or on other data, never take each other's place.
    """
    decisive: list[object] = [header.spec, header.fingerprint]
    if header.workers > 1:
        decisive.append(header.workers)
    content = json.dumps(decisive, sort_keys=True)
    digest = hashlib.sha256(content.encode("utf-8")).hexdigest()[:10]
    return folder / header.id / f"{header.agent}-seed{header.seed}-{digest}{SUFFIX}"


@checked_types
def write_record(path: Path, record: RunRecord) -> None:
    """Write a record; a crash leaves the old file, if any, and no half of the new one.

    Raises:
        MissingDependencyError: the name ends with `.parquet`, and pyarrow is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == parquet.SUFFIX:
        parquet.write_columns(path, record)
        return
    contents = chain([to_dict(record.header)], map(to_dict, record.steps))
    lines = (json.dumps(content, allow_nan=False).encode("utf-8") for content in contents)
    with new_file(path) as handle:
        for line in sealed(lines):
            handle.write(line + b"\n")


@checked_types
def read_record(path: Path) -> RunRecord:
    """Read a record and check every line of it.

    Raises:
        MissingDataError: there is no such file.
        DamagedDataError: a line is damaged, foreign, or not where it was written, or the file is
            cut short; the message names file and line number.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no run record {path}; make it with `fedhpo-gym run`")
    if path.suffix == parquet.SUFFIX:
        return parquet.read_columns(path)
    lines = path.read_bytes().split(b"\n")
    cut = lines.pop() != b""
    if cut or not lines:
        raise _damaged(path, len(lines) + 1, "the file is cut short here")
    first = _json(path, 1, lines[0])
    if not is_old(first):
        _check_claims(path, first)
        lines = list(_checked_lines(path, lines))
        first = _json(path, 1, lines[0])
    header = _built(path, 1, first, Header.from_dict)
    build = step_builder(first)
    steps = [
        _built(path, number, _json(path, number, line), build)
        for number, line in enumerate(lines[1:], start=2)
    ]
    if fault := first_fault(steps):
        raise _damaged(path, fault[0] + 1, f"step {fault[0]} {fault[1]}")
    return RunRecord(header, tuple(steps))


def read_judged(path: Path) -> JudgedRun:
    """Read what judges read of a record; of a Parquet file, nothing else.

    Raises:
        InvalidArgumentError: validation loss is not among the objectives.
        MissingDataError: there is no such file.
        DamagedDataError: see `read_record`.
    """
    if path.suffix == parquet.SUFFIX and path.is_file():
        return parquet.read_judged(path)
    return JudgedRun.of(read_record(path))


def _check_claims(path: Path, first: object) -> None:
    """Say what a file is instead, or of which format, before its digests are looked at."""
    claims = first if isinstance(first, dict) else {}
    if (claims.get("kind"), claims.get("format")) != (KIND, FORMAT):
        plain = {name: value for name, value in claims.items() if name != "digest"}
        _built(path, 1, plain if claims else first, Header.from_dict)


def _checked_lines(path: Path, lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield lines without their digests."""
    digest = START
    for number, line in enumerate(lines, start=1):
        found = opened(line, digest)
        if found is None:
            raise _damaged(
                path,
                number,
                "its digest is wrong: it was changed, or lines before it were changed, lost, "
                "repeated or moved",
            )
        content, digest = found
        yield content


@checked_types
def read_folder(
    paths: Iterable[Path],
    damaged: Callable[[Path, DamagedDataError], None] | None = None,
) -> Iterator[tuple[Path, RunRecord]]:
    """Read every record in some files and folders, in the order of their names.

    Args:
        paths: files and folders.
        damaged: is told of a damaged record, which is then left out; None raises the error.

    Raises:
        MissingDataError: there is no record in one of them.
        DamagedDataError: see `read_record`.
    """
    return read_each(paths, read_record, damaged)


def read_each(
    paths: Iterable[Path],
    read: Callable[[Path], _Run],
    damaged: Callable[[Path, DamagedDataError], None] | None = None,
) -> Iterator[tuple[Path, _Run]]:
    """Read every record as `read_folder` does, by `read_record` or by `read_judged`."""
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
        if not found:
            raise MissingDataError(
                f"there is no run record in {path}; make some with `fedhpo-gym run ID --out {path}`"
            )
        for file in found:
            try:
                record = read(file)
            except DamagedDataError as error:
                if damaged is None:
                    raise
                damaged(file, error)
                continue
            yield file, record


@checked_types
def set_aside(path: Path, error: DamagedDataError) -> str:
    """Rename a damaged record to `<name>.damaged`, where no command looks for records.

    A file that is not named as records are, or that cannot be renamed, stays where it is.

    Returns:
        What is wrong with it, and where it is now.
    """
    words, aside = str(error).removesuffix(_REPAIR), path.with_name(f"{path.name}.damaged")
    if not _NAME.fullmatch(path.name):
        return f"{words}; left out"
    try:
        path.replace(aside)
    except OSError as reason:
        return f"{words}; left out, and not renamed ({reason.strerror})"
    return f"{words}; set aside as {aside.name}"


def _json(path: Path, number: int, line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, str(error)) from error


def _built(path: Path, number: int, content: object, build: Callable[[object], _Line]) -> _Line:
    try:
        return build(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, str(error)) from error


def _refuse(constant: str) -> Any:
    raise InvalidArgumentError(f"{constant} is no finite number")


def _damaged(path: Path, line: int, reason: str) -> DamagedDataError:
    return DamagedDataError(f"{path}, line {line}: not a run record: {reason}{_REPAIR}")
