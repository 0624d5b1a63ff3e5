"""Computing units in worker processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends.training import make_batch
from fedhpo_gym.building.design import Design, U, write_unit
from fedhpo_gym.building.provenance import this_machine
from fedhpo_gym.core.processes import WorkerPool, each_on_cluster
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.self_check import require_equal_bits
from fedhpo_gym.tasks import Task

WAIT_S = 1.0
"""Seconds between two looks at what other builds compute."""


def compute_units(
    design: Design[U],
    units: Sequence[U],
    folder: Path,
    workers: int,
    device: str = "cpu",
    address: str | None = None,
) -> None:
    """Compute and store units one by one; those that other builds compute are waited for."""
    if address is not None:
        _on_cluster(design, units, folder, device, address)
        return
    crew = WorkerPool[U](workers, UnitWork(design, folder, device, try_laws(design.task, device)))
    with tqdm(unit="round", desc=design.task.table_name) as bar, crew:
        while units:
            bar.total = bar.n + sum(design.evaluated_rounds(unit.name)[-1] for unit in units)
            bar.refresh()
            done = crew.do(units, lambda: bar.update() and None)
            units = design.missing(folder)
            if units and not any(done):
                bar.set_postfix_str(f"another build computes the last {len(units)} units")
                time.sleep(WAIT_S)


def _on_cluster(
    design: Design[U], units: Sequence[U], folder: Path, device: str, address: str
) -> None:
    work = partial(UnitWork(design, folder.resolve(), device), advance=_nothing)
    while units:
        with tqdm(total=len(units), unit="unit", desc=design.task.table_name) as bar:
            done = []
            for one in each_on_cluster(work, units, address):
                if one.error is not None:
                    raise one.error
                done.append(one.result)
                bar.update()
        units = design.missing(folder)
        if units and not any(done):
            time.sleep(WAIT_S)


def _nothing() -> None:
    """Say nothing of how far a unit is."""


@dataclass(frozen=True)
class UnitWork(Generic[U]):
    """What a worker does with a unit: compute and store it, unless another build does."""

    design: Design[U]  # what the units belong to
    folder: Path  # where units are stored
    device: str  # torch device
    # of `try_laws` on this machine; None where each process finds out itself.
    verdict: str | None = None

    def __call__(self, unit: U, advance: Callable[[], None]) -> bool:
        """Return whether the unit is stored now; if not, another build computes it."""
        with claim(self.folder, self.design.positions(unit)) as ours:
            if ours and not self.design.is_stored(unit, self.folder):
                verdict = self.verdict
                if verdict is None:
                    verdict = try_laws(self.design.task, self.device)
                compute_unit(self.design, unit, self.folder, self.device, advance, verdict)
            return ours


def try_laws(task: Task, device: str) -> str:
    """Try whether a course of a task has the same bits in any company here; seconds, once."""
    if device != "cpu":
        return ""
    found = [require_equal_bits(get_model(name), task.precision) for name in task.models]
    return "; ".join(dict.fromkeys(found))


def compute_unit(
    design: Design[U],
    unit: U,
    folder: Path,
    device: str = "cpu",
    advance: Callable[[], None] | None = None,
    verdict: str = "",
) -> None:
    """Train every course of a unit and store its curves."""
    batch = make_batch(design.task, design.courses(unit), device, design.horizon)
    rounds = design.evaluated_rounds(unit.name)
    curves = batch.advance(rounds[-1], advance, rounds)
    arrays: dict[str, NDArray[Any]] = {
        "metrics": curves.metrics,
        "rounds": curves.rounds,
        "diverged_at": curves.diverged_at,
        "hardware": np.array(this_machine(device, verdict)),
    }
    write_unit(folder, unit.name, arrays)


NAME = "claims"


@contextmanager
def claim(folder: Path, positions: Sequence[int]) -> Iterator[bool]:
    """Lock a byte per position for the body; give whether all are this process's."""
    descriptor = _open(folder / NAME)
    held: list[int] = []
    try:
        yield all(_lock(descriptor, position, held) for position in positions)
    finally:
        for position in held:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, position)


def _lock(descriptor: int, position: int, held: list[int]) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # no locks here
        return True
    held.append(position)
    return True


@cache
def _open(path: Path) -> int:
    # Never closed: closing any descriptor of the file would give all claims of the process back.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
