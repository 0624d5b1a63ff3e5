"""Handing a federation over: an .npz file with the samples of every client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedhpo_gym.courses.handing import arrays_of
from fedhpo_gym.courses.training import task_federation
from fedhpo_gym.files import new_file
from fedhpo_gym.tasks import Task


def hand_over(task: Task, seed: int, folder: Path) -> Path:
    """Write the federation of a task under one seed into a folder, unless it is there.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written, for example because the disk is full.
    """
    path = folder / f"{task.table_name}-{task.alpha:g}-{task.preprocessing}-seed{seed}.npz"
    if not path.exists():
        arrays = arrays_of(task_federation(task, seed))
        with new_file(path) as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return path
