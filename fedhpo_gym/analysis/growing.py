"""A record while its run goes on: every trial is on file when it is over.

The file is named as the record with `.open` behind it, where no command looks for records. A run
that was killed starts over, because optimizers remember what they did; what it does again is
compared with the lines that are there, and only what is new is written. So a run that is not what
it was is noticed, and killed runs leave what they did for who wants to read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedhpo_gym.analysis.chain import START, opened, seal
from fedhpo_gym.analysis.records import Header, StepRecord, to_dict
from fedhpo_gym.files import naming

OPEN: Final = ".open"


class GrowingRecord:
    """The file of one run that is not over.

    Attributes:
        kept: how many lines of a run before this one hold so far, the header's included.
    """

    def __init__(self, path: Path, descriptor: int, warn: Callable[[str], None]) -> None:
        """Read the lines that are there; see `growing`.

        Args:
            path: of the file.
            descriptor: the file, open for reading and writing.
            warn: is told if the run is not what it was.
        """
        self._path, self._descriptor, self._warn = path, descriptor, warn
        self._former = _whole_lines(path.read_bytes())
        self._digest, self._end = START, 0
        self.kept = 0
        os.ftruncate(descriptor, sum(map(len, self._former)))

    def add(self, content: Header | StepRecord) -> None:
        """Append a line, unless it is there."""
        text = json.dumps(to_dict(content), allow_nan=False).encode("utf-8")
        line, self._digest = seal(text, self._digest)
        line += b"\n"
        if self.kept < len(self._former):
            if self._former[self.kept] == line:
                self.kept += 1
                self._end += len(line)
                return
            self._drop_former()
        with naming(self._path):
            written = 0
            while written < len(line):  # a disk that gets full takes a part first
                written += os.pwrite(self._descriptor, line[written:], self._end + written)
        self._end += len(line)

    def sync(self) -> None:
        """Have all lines on the disk, and none of a run before this one that went on longer."""
        with naming(self._path):
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)

    def _drop_former(self) -> None:
        self._warn(
            f"{self._path}: line {self.kept + 1} is not what the run before it wrote, from the "
            "same seed; the package, a library or the data has changed, or the agent's randomness "
            "has other sources than its seed. What follows was written anew"
        )
        self._former = self._former[: self.kept]
        os.ftruncate(self._descriptor, self._end)


@contextmanager
def growing(path: Path, warn: Callable[[str], None]) -> Iterator[GrowingRecord]:
    """Open the file of a run for the body of the `with` statement; others wait until it ends.

    Args:
        path: where the record will be.
        warn: is told if the run is not what it was.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}{OPEN}")
    descriptor = _locked(own)
    try:
        yield GrowingRecord(own, descriptor, warn)
    finally:
        os.close(descriptor)


def read_unfinished(path: Path) -> list[dict[str, Any]]:
    """Return header and steps that a run has left so far, as plain data.

    Args:
        path: a file whose name ends with `OPEN`. A line that was cut, and what follows a damaged
            one, are left out.
    """
    found, digest = [], START
    for line in _whole_lines(path.read_bytes()):
        pair = opened(line[:-1], digest)
        assert pair is not None  # noqa: S101 - whole lines are those that open
        content, digest = pair
        found.append(json.loads(content))
    return found


def _locked(path: Path) -> int:
    """Open a file that nobody else has open here; where the system knows no locks, open it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor
        # Who had it may have finished, and so renamed or removed it.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _whole_lines(content: bytes) -> list[bytes]:
    lines, digest = [], START
    for line in content.split(b"\n")[:-1]:
        found = opened(line, digest)
        if found is None:
            break
        digest = found[1]
        lines.append(line + b"\n")
    return lines
