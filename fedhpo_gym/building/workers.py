"""Computing units in worker processes."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedhpo_gym.building.design import Design, U
from fedhpo_gym.building.provenance import this_machine
from fedhpo_gym.courses.training import make_batch
from fedhpo_gym.errors import DamagedDataError, FedHPOError

_finished_rounds: Synchronized[int] | None = None


def compute_units(
    design: Design[U], units: Sequence[U], folder: Path, workers: int, device: str = "cpu"
) -> None:
    """Compute units and store each as it finishes; shows a progress bar over rounds.

    Args:
        design: what the units belong to.
        units: what to compute.
        folder: where `<unit>.npz` files go; one appears whole or not at all.
        workers: worker processes.
        device: torch device.

    Raises:
        FedHPOError: a worker process was ended from outside.
    """
    context = get_context("spawn")
    counter = context.Value("q", 0)
    task = design.task
    with (
        tqdm(total=len(units) * task.max_round, unit="round", desc=task.table_name) as bar,
        ProcessPoolExecutor(workers, context, _share, (counter,)) as pool,
    ):
        pending = {pool.submit(compute_unit, design, unit, folder, device) for unit in units}
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                _check(future)
            bar.update(counter.value - bar.n)


def _check(future: Future[None]) -> None:
    """Raise what ended a unit; a worker that is no longer there is an error of its own."""
    try:
        future.result()
    except BrokenProcessPool as error:
        raise FedHPOError(
            "a worker process was ended from outside, most often for want of memory; run the same "
            "build again with fewer `--workers`: it keeps what is finished"
        ) from error


def compute_unit(design: Design[U], unit: U, folder: Path, device: str = "cpu") -> None:
    """Train every course of a unit and store its curves."""
    batch = make_batch(design.task, design.courses(unit), device, design.horizon)
    task = design.task
    curves = batch.advance(task.max_round, _count_round, task.evaluated_rounds)
    part = folder / f"{unit.name}.part{os.getpid()}"
    with part.open("wb") as handle:
        np.savez(
            handle,
            metrics=curves.metrics,
            rounds=curves.rounds,
            diverged_at=curves.diverged_at,
            hardware=np.array(this_machine(device)),
        )
    part.replace(folder / f"{unit.name}.npz")


def read_unit(folder: Path, name: str) -> dict[str, Any]:
    """Return `metrics`, `rounds`, `diverged_at` and `hardware` of a stored unit.

    Raises:
        DamagedDataError: the file cannot be read; says what to do.
    """
    path = folder / f"{name}.npz"
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            return {key: archive[key] for key in ("metrics", "rounds", "diverged_at", "hardware")}
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error}); delete it and run the same build again"
        ) from error


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
