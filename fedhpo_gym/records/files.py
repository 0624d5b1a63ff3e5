"""Run records on disk: their paths, and reading and writing them completely or not at all.

`fedhpo_gym.studies.run` writes a record while its run goes on; reports, replays and `load_runs`
read it. Until the run ends, its file has the suffix `.open`, where no command looks for records.
A run that was killed starts over, because an optimizer has state that no record holds. The lines
that it produces again are compared with those in the file, and only new ones are written.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeVar

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    OtherFormatError,
    TooLargeError,
)
from fedhpo_gym.core.files import naming_file, new_file
from fedhpo_gym.records import parquet
from fedhpo_gym.records import record as records
from fedhpo_gym.records.runs import JudgedRun

SUFFIX = ".jsonl"
SUFFIXES = (SUFFIX, parquet.SUFFIX)
_NAME = re.compile(r".+-seed\d+-[0-9a-f]{10}\.(jsonl|parquet)")
"""Names as `record_path` makes them; other files are not ours to rename."""
_ASIDE = re.compile(rf"({_NAME.pattern})\.damaged\d*")
"""What `set_aside` names damaged ones."""
_WRAPPER = re.compile(r'"fedhpo_gym\.wrappers:(\w+)"')
"""What specs call a wrapper; keys are made of the file that it was in, so that studies go on."""
INTACT: Final = (OtherFormatError, TooLargeError)
"""What is raised of files that others, or this package with more memory, can read."""
_REPAIR = "; delete the file and run its `fedhpo-gym run` again"

_Line = TypeVar("_Line", records.Header, records.StepRecord, None)
_Run = TypeVar("_Run", records.RunRecord, JudgedRun)


@validate_call
def record_path(folder: Path, header: records.Header) -> Path:
    """Return where the record of a run belongs.

    The name holds a digest of the environment's spec, fingerprint and workers: runs under other
    settings, or on other data, never take each other's place.
    """
    key = record_key(header.spec, header.fingerprint, header.workers, header.shared_start)
    return keyed_path(folder, header.id, header.agent, header.seed, key)


def keyed_path(folder: Path, env_id: str, agent: str, seed: int, key: str) -> Path:
    """Return where a record belongs; `module:Class` has a dot there, for Windows' sake."""
    return folder / env_id / f"{agent.replace(':', '.')}-seed{seed}-{key}{SUFFIX}"


def record_key(
    spec: Mapping[str, Any], fingerprint: str, workers: int, shared_start: int = 0
) -> str:
    """Return what the names of records of one setting on the same data end with."""
    decisive: list[object] = [spec, fingerprint, *([workers] if workers > 1 else [])]
    decisive += [{"shared_start": shared_start}] if shared_start else []
    content = _WRAPPER.sub(_former_wrapper_path, json.dumps(decisive, sort_keys=True))
    return hashlib.sha256(content.encode("utf-8")).hexdigest()[:10]


def _former_wrapper_path(match: re.Match[str]) -> str:
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower()
    return f'"fedhpo_gym.wrappers.{module}:{match[1]}"'


@validate_call
def write_record(path: Path, record: records.RunRecord) -> None:
    """Write a record; a crash leaves the old file, if any, and no half of the new one.

    Raises:
        MissingDependencyError: the name ends with `.parquet`, and pyarrow is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == parquet.SUFFIX:
        parquet.write_parquet(path, record)
        return
    contents = chain([records.to_dict(record.header)], map(records.to_dict, record.steps))
    lines = (json.dumps(content, allow_nan=False).encode("utf-8") for content in contents)
    with new_file(path) as handle:
        for line in records.seal_lines(lines):
            handle.write(line + b"\n")


@validate_call
def read_record(path: Path) -> records.RunRecord:
    """Read a record and check every line of it.

    Raises:
        MissingDataError: there is no such file.
        DamagedDataError: a line is damaged, foreign, or not where it was written, or the file is
            cut short; the message names file and line number.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no run record {path}; make it with `fedhpo-gym run`")
    if path.suffix == parquet.SUFFIX:
        return parquet.read_parquet(path)
    lines = path.read_bytes().split(b"\n")
    cut = lines.pop() != b""
    if cut or not lines:
        raise _damage_error(path, len(lines) + 1, "the file is cut short here")
    _parse_line(path, 1, lines[0], partial(_check_claims, path))
    contents = records.unseal_lines(lines)
    if len(contents) < len(lines):
        raise _damage_error(
            path,
            len(contents) + 1,
            "its digest is wrong: it was changed, or lines before it were changed, lost, repeated "
            "or moved",
        )
    header = _parse_line(path, 1, contents[0], records.Header.from_dict)
    steps = [
        _parse_line(path, line_number, line, records.StepRecord.from_dict)
        for line_number, line in enumerate(contents[1:], start=2)
    ]
    if fault := records.first_fault(steps):
        raise _damage_error(path, fault[0] + 1, f"step {fault[0]} {fault[1]}")
    return records.RunRecord(header, tuple(steps))


def read_judged(path: Path) -> JudgedRun:
    """Read a record as a `JudgedRun`; of a Parquet file, only the columns that it needs."""
    if path.suffix == parquet.SUFFIX and path.is_file():
        return parquet.read_judged_columns(path)
    return JudgedRun.of(read_record(path))


def _check_claims(path: Path, first: object) -> None:
    """Refuse a file that is no record of this format, before its digests are checked."""
    claims = first if isinstance(first, dict) else {}
    if claims.get("kind") == records.KIND:
        records.require_format(f"{path}, line 1", claims.get("format"), records.FORMAT, claims)
    if (claims.get("kind"), claims.get("format")) != (records.KIND, records.FORMAT):
        content = {name: value for name, value in claims.items() if name != "digest"}
        records.Header.from_dict(content if claims else first)


@validate_call
def read_folder(
    paths: Iterable[Path], damaged: Callable[[Path, DamagedDataError], None] | None = None
) -> Iterator[tuple[Path, records.RunRecord]]:
    """Read every record in some files and folders, in the order of their names.

    Args:
        paths: files and folders.
        damaged: is called with a damaged record, which is then left out; None raises the error.

    Raises:
        MissingDataError: there is no record in one of them.
        DamagedDataError: as in `read_record`.
    """
    return read_each(paths, read_record, damaged)


def read_each(
    paths: Iterable[Path],
    read: Callable[[Path], _Run],
    damaged: Callable[[Path, DamagedDataError], None] | None = None,
) -> Iterator[tuple[Path, _Run]]:
    """Read every record as `read_folder` does, by `read_record` or by `read_judged`."""
    for path in paths:
        files, damaged_files = [path], list[Path]()
        if path.is_dir():
            files = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
            damaged_files = sorted(filter(_is_unreplaced, path.rglob("*.damaged*")))
        for file in damaged_files:
            damage = DamagedDataError(
                f"{file} was damaged, and nothing has taken its place; run its `fedhpo-gym run` "
                "again, or delete the file"
            )
            if damaged is None:
                raise damage
            damaged(file, damage)
        if not files:
            raise MissingDataError(
                f"there is no run record in {path}; make some with `fedhpo-gym run ID --out {path}`"
            )
        for file in files:
            try:
                record = read(file)
            except DamagedDataError as error:
                if damaged is None:
                    raise
                damaged(file, error)
                continue
            yield file, record


def _is_unreplaced(path: Path) -> bool:
    """Return whether a file is a damaged record that was set aside and not made anew."""
    name = _ASIDE.fullmatch(path.name)
    return name is not None and not any(
        path.with_name(name[1]).with_suffix(suffix).exists() for suffix in SUFFIXES
    )


@validate_call
def set_aside(path: Path, error: DamagedDataError) -> str:
    """Rename a damaged record to `<name>.damaged`, where no command looks for records.

    If there is such a file already, `<name>.damaged2`, and so on. A file that is intact, of another
    format or too large, that is not named as records are, or that cannot be renamed, stays.

    Returns:
        What is wrong with it, and where it is now.
    """
    fault, new_path = str(error).removesuffix(_REPAIR), path.with_name(f"{path.name}.damaged")
    if isinstance(error, INTACT) or not _NAME.fullmatch(path.name):
        return f"{fault}; left out"
    counter = count(2)
    try:
        while new_path.exists():
            new_path = path.with_name(f"{path.name}.damaged{next(counter)}")
        path.replace(new_path)
    except OSError as reason:
        return f"{fault}; left out, and not renamed ({reason.strerror})"
    return f"{fault}; set aside as {new_path.name}, and the same `fedhpo-gym run` makes it anew"


def _parse_line(
    path: Path, line_number: int, line: bytes, parse: Callable[[object], _Line]
) -> _Line:
    try:
        return parse(json.loads(line.decode("utf-8"), parse_constant=_refuse_constant))
    except OtherFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, line_number, str(error)) from error


def _refuse_constant(constant: str) -> Any:
    raise InvalidArgumentError(f"{constant} is no finite number")


def _damage_error(path: Path, line: int, reason: str) -> DamagedDataError:
    return DamagedDataError(f"{path}, line {line}: not a run record: {reason}{_REPAIR}")


OPEN: Final = ".open"


class GrowingRecord:
    """The file of an unfinished run; `num_reused` counts the lines of a former run that hold."""

    def __init__(self, path: Path, descriptor: int, warn: Callable[[str], None]) -> None:
        self._path, self._descriptor, self._warn = path, descriptor, warn
        lines = path.read_bytes().split(b"\n")[:-1]
        self._former = [line + b"\n" for line in lines[: len(records.unseal_lines(lines))]]
        self._digest, self._end = records.START, 0
        self.num_reused = 0
        os.ftruncate(descriptor, sum(map(len, self._former)))

    def add(self, content: records.Header | records.StepRecord) -> None:
        """Append a line, unless it is there."""
        text = json.dumps(records.to_dict(content), allow_nan=False).encode("utf-8")
        line, self._digest = records.seal_line(text, self._digest)
        line += b"\n"
        if self.num_reused < len(self._former):
            if self._former[self.num_reused] == line:
                self.num_reused += 1
                self._end += len(line)
                return
            self._warn(
                f"{self._path}: line {self.num_reused + 1} is not what the run before it wrote, "
                "from the same seed; the package, a library or the data has changed, or the "
                "agent's randomness has other sources than its seed. What follows was written anew"
            )
            self._former = self._former[: self.num_reused]
            os.ftruncate(self._descriptor, self._end)
        with naming_file(self._path):
            written = 0
            while written < len(line):  # a disk that gets full first writes only some bytes
                written += os.pwrite(self._descriptor, line[written:], self._end + written)
        self._end += len(line)

    def sync(self) -> None:
        """Flush all lines to the disk, and drop further ones of a former, longer run."""
        with naming_file(self._path):
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)


@contextmanager
def open_growing(path: Path, warn: Callable[[str], None]) -> Iterator[GrowingRecord]:
    """Open the file of a run for the body of the `with` statement; others wait until it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    open_path = path.with_name(f"{path.name}{OPEN}")
    descriptor = _open_locked(open_path)
    try:
        yield GrowingRecord(open_path, descriptor, warn)
    finally:
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """Open a file that nobody else has open here; where the system knows no locks, open it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor
        # The process that held the lock may have renamed or removed the file at its end.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)
