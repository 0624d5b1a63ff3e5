"""A meta-data set in miniature: six tasks, pools of twenty, losses that are formulas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from fedhpo_gym.building import meta_data
from fedhpo_gym.tasks.meta import MetaTask, meta_tasks

NAMES = ("CreditG-5-label", "Car-5-label", "MplsStops", "Digits-5-label", "Wine-5-label", "Tuna")
"""Three of meta-train, one of validation, two of test."""
SHARED, OWN = 12, 8


def made_tasks(space: str = "LR") -> tuple[MetaTask, ...]:
    """Return the tasks of the miniature that a search space has."""
    return tuple(one for one in meta_tasks(space) if one.name in NAMES)


def write_made(folder: Path, space: str = "LR") -> Path:
    """Write the miniature; the loss is the squared distance from a point of each task."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    unread = {"load_dataset": lambda name: SimpleNamespace(fingerprint=name)}  # needs no data
    with mock.patch.multiple(meta_data, meta_tasks=made_tasks, SHARED=SHARED, **unread):
        paths = [parts / f"{one.name}.npz" for one in made_tasks(space)]
        for number, (one, path) in enumerate(zip(made_tasks(space), paths, strict=True)):
            np.savez(path, **_part(one, number))
        return meta_data.write_meta_data(space, paths, folder, surrogate=False)


def _part(meta: MetaTask, number: int) -> dict[str, np.ndarray]:
    task, rng = meta.task, np.random.default_rng(number)
    space = meta_data.pool_space(task)
    own = [space.sample(rng) for _ in range(OWN)]
    pool = [*meta_data.shared_configurations(space), *own]
    actions = np.stack([task.space.encode(one) for one in pool])
    optimum = 0.2 + 0.05 * number
    loss = task.label_entropy * (0.3 + ((actions - optimum) ** 2).mean(axis=1))
    loss[number] = 3e38  # one diverged
    rounds, rates = len(task.evaluated_rounds), 2
    later = 1.0 + 0.1 * np.arange(rounds)[::-1] + 0.05 * np.arange(rates)[::-1, None]
    measured = [1.0, 1.1, 0.5, 0.6, 0.2, 0.1]
    values = loss[:, None, None, None] * later[..., None] * np.array(measured)
    values = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)
    again = values[:: meta_data.REPEATED]
    return {
        "own": meta_data._to_rows(task, own),
        "values": values,
        "repeats": np.stack([again, again]),
        "features": np.arange(len(meta_data.FEATURES)) + float(number),
    }
