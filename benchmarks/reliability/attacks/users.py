"""Many users of one cache folder at once, as on a cluster whose home folders are shared."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attacks.verdicts import Tally, judged
from attacks.writing import fetched, read_fetched
from fedhpo_gym.core.files import write_text
from fedhpo_gym.data import cache

LIMIT_S = 120.0


def users(count: int, room: Path) -> list[Tally]:
    """Let processes ask an empty cache for the same things at the same moment."""
    tally = Tally(f"{count} processes on one empty cache")
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(dir=room) as home:
        write_text(Path(home) / "source", "x")
        barrier, results = context.Barrier(count), context.SimpleQueue()
        started = [
            context.Process(target=_use, args=(Path(home), barrier, results), daemon=True)
            for _ in range(count)
        ]
        for process in started:
            process.start()
        for number, process in enumerate(started):
            process.join(LIMIT_S)
            if process.is_alive():
                process.kill()
                tally.add("hung", number, "no answer")
            elif process.exitcode:
                tally.add("undocumented", number, f"status {process.exitcode}")
            else:
                kind, said = results.get()
                # Nobody damaged anything: even a documented error would be wrong here.
                tally.add(kind if kind != "documented" else "lost", number, said)
    return [tally]


def _use(home: Path, barrier: Any, results: Any) -> None:
    os.environ["XDG_CACHE_HOME"] = str(home / "cache")
    barrier.wait(LIMIT_S)
    results.put(judged(lambda: _both(home)))


def _both(home: Path) -> str:
    def make() -> Mapping[str, Any]:
        return {"x": np.arange(20_000.0)}

    found = cache.derive_arrays("shared", [home / "source"], make, "x")
    fetched(home)
    whole = bool((found["x"] == np.arange(20_000.0)).all()) and read_fetched(home) == 1
    return "fine" if whole else "silent"
