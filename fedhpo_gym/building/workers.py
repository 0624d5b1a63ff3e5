"""Computing units in worker processes."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedhpo_gym.backends.training import make_batch
from fedhpo_gym.building.units import Unit, unit_courses
from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.tasks import Task

_finished_rounds: Synchronized[int] | None = None


def compute_units(task: Task, units: Sequence[Unit], folder: Path, workers: int) -> None:
    """Compute units and store each as it finishes; shows a progress bar over rounds.

    Args:
        task: the task.
        units: what to compute.
        folder: where `<unit>.npz` files go; one appears whole or not at all.
        workers: worker processes.
    """
    context = get_context("spawn")
    counter = context.Value("q", 0)
    with (
        tqdm(total=len(units) * task.max_round, unit="round", desc=task.table_name) as bar,
        ProcessPoolExecutor(workers, context, _share, (counter,)) as pool,
    ):
        pending = {pool.submit(compute_unit, task, unit, folder) for unit in units}
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            bar.update(counter.value - bar.n)


def compute_unit(task: Task, unit: Unit, folder: Path) -> None:
    """Train every course of a unit and store its curves."""
    curves = make_batch(task, unit_courses(task, unit)).advance(task.max_round, _count_round)
    part = folder / f"{unit.name}.part{os.getpid()}"
    with part.open("wb") as handle:
        np.savez(handle, metrics=curves.metrics, diverged_at=curves.diverged_at)
    part.replace(folder / f"{unit.name}.npz")


def read_unit(folder: Path, unit: Unit) -> dict[str, Any]:
    """Return the stored `metrics` and `diverged_at` of a unit.

    Raises:
        DamagedDataError: the file cannot be read; says what to do.
    """
    path = folder / f"{unit.name}.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error}); delete it and run the same build again"
        ) from error


def missing(units: Sequence[Unit], folder: Path) -> Iterator[Unit]:
    """Yield the units that have no stored result yet."""
    return (unit for unit in units if not (folder / f"{unit.name}.npz").exists())


def _share(counter: Synchronized[int]) -> None:
    global _finished_rounds
    _finished_rounds = counter
    threading.Thread(target=_end_with_builder, daemon=True).start()


def _end_with_builder() -> None:
    """End a worker whose builder was killed, whether it works or waits for work."""
    builder = parent_process()
    if builder is not None:
        builder.join()
        os._exit(1)


def _count_round() -> None:
    if _finished_rounds is not None:
        with _finished_rounds.get_lock():
            _finished_rounds.value += 1
