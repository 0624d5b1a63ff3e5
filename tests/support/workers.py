"""Work for the workers of a crew, which import it from here, and a crew without processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from fedhpo_gym.core.files import new_file
from fedhpo_gym.core.processes import JobFunction, JobResult

J = TypeVar("J")


class CrewHere(Generic[J]):
    """Does the jobs of a `WorkerPool` in this process, where starting one would take seconds."""

    def __init__(self, _size: int, work: JobFunction[J]) -> None:
        self._work = work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, jobs: Iterable[J], advance: Callable[[], None]) -> list[Any]:
        return [done.result for done in self.run_each(jobs, advance)]

    def run_each(
        self, jobs: Iterable[J], advance: Callable[[], None], _timeout_s: float = math.inf
    ) -> Iterator[JobResult[J]]:
        for job in jobs:
            yield JobResult(job, result=self._work(job, advance))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def square(job: int, advance: Callable[[], None]) -> int:
    """Advance as often as the job says, and return its square."""
    for _ in range(job):
        advance()
    return job * job


def process(_job: None, _advance: Callable[[], None]) -> int:
    """Return which process does the work."""
    return os.getpid()


def fail(job: int, _advance: Callable[[], None]) -> int:
    """Refuse odd jobs."""
    if job % 2:
        raise ValueError(f"{job} is odd")
    return job


def write_slowly(job: Path, _advance: Callable[[], None]) -> None:
    """Begin a file, and take ten minutes for it."""
    with new_file(job) as handle:
        handle.write(b"half")
        handle.flush()
        time.sleep(600.0)


def refuse_to_end(job: Path, _advance: Callable[[], None]) -> None:
    """Do what a library may do that hears no signal for ten minutes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job.touch()
    time.sleep(600.0)


def be_killed(_job: Path, _advance: Callable[[], None]) -> None:
    """End as a process does that needs more memory than there is."""
    os.kill(os.getpid(), signal.SIGKILL)


class KilledWhileStarting:
    """Work whose process is killed before it has read all of it."""

    rest = bytes(1 << 22)
    """More than fits into a pipe."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[object, ...]]:
        """Kill who reads it, and only then say the rest."""
        return _first_then, (_Killing(), self.rest)

    def __call__(self, _job: int, _advance: Callable[[], None]) -> None:
        """Never done."""


class _Killing:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[object, ...]]:
        return _kill_this_process, ()


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _first_then(*_: object) -> None:
    """Come to nothing: the process was killed."""
