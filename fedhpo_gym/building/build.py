"""The build command: compute what is missing, then write the table."""

from __future__ import annotations

import os
from pathlib import Path

from fedhpo_gym.building.consolidate import consolidate, plan_digest
from fedhpo_gym.building.units import list_units
from fedhpo_gym.building.workers import compute_units, missing
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.tables import table_folder
from fedhpo_gym.tasks import Task


def build_table(task: Task, folder: Path | None = None, workers: int | None = None) -> Path:
    """Train every course of a task's grid and store the learning curves.

    Finished units are kept under `<folder>/parts`; a build that was interrupted, even by kill -9,
    goes on with the units that are missing, and its table is the same as an uninterrupted one. The
    units of one table take about 1 GB; delete them when the table is written.

    Args:
        task: the task, with its algorithm, alpha and preprocessing.
        folder: where the table goes; by default the folder `open_table` looks in first.
        workers: worker processes; by default one per core.

    Returns:
        Path of the table's card.

    Raises:
        InvalidArgumentError: `workers` is not positive.
        MissingDataError: the training data cannot be had.
    """
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    if workers < 1:
        raise InvalidArgumentError(f"`workers` must be at least 1, got {workers!r}")
    target = table_folder() if folder is None else folder
    parts = target / "parts" / f"{task.table_name}-{plan_digest(task)}"
    parts.mkdir(parents=True, exist_ok=True)
    todo = list(missing(list_units(task), parts))
    if todo:
        compute_units(task, todo, parts, workers)
    return consolidate(task, parts, target)
