"""A dask scheduler and two workers on this machine, for tests that kill one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PATHS = (REPOSITORY, REPOSITORY / "tests" / "support")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def address_in(place: Path) -> str | None:
    """Return the scheduler's address; None while it is still writing its file."""
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["address"])
    except json.JSONDecodeError:
        return None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two worker processes, which have a thread each."""
    pytest.importorskip("distributed")
    place = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    own = ["--host", "127.0.0.1", "--no-dashboard"]
    started = [
        subprocess.Popen(
            [*dask, "scheduler", *own, "--port", "0", "--scheduler-file", str(place)],
            env=ENVIRONMENT,
            stderr=subprocess.DEVNULL,
        )
    ]
    try:
        wait_for(lambda: place.exists() and address_in(place) is not None, started[0])
        address = address_in(place)
        assert address is not None
        for number in range(2):
            folder = ["--local-directory", str(tmp_path / str(number))]
            started.append(
                subprocess.Popen(
                    [*dask, "worker", address, *own, "--no-nanny", "--nthreads", "1", *folder],
                    env=ENVIRONMENT,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()
