"""From the units of a build to a table."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.curves import best_rounds
from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.building.units import list_units, place, unit_shape
from fedhpo_gym.building.workers import read_unit
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.fl.datasets import SOURCES, load_dataset
from fedhpo_gym.schema import METRICS, SPLITS
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tables import codec
from fedhpo_gym.tables.naming import build_arguments
from fedhpo_gym.tables.store import WHICH, write_table
from fedhpo_gym.tasks import Task


def consolidate(task: Task, parts: Path, folder: Path) -> Path:
    """Write the table of a task from its finished units.

    Args:
        task: the task.
        parts: folder with the units' results.
        folder: where the table goes.

    Returns:
        Path of the table's card.
    """
    samples = np.stack([task_federation(task, seed).num_samples for seed in task.seeds])
    arrays = _empty_arrays(task, samples)
    for unit in list_units(task):
        stored = read_unit(parts, unit)
        _fill(arrays, task, place(task, unit), stored, samples[task.seeds.index(unit.seed)])
    return write_table(folder, _card(task, samples, arrays), arrays)


def plan(task: Task) -> dict[str, Any]:
    """Return everything that decides a build's numbers; a resumed build must have the same."""
    return {
        "name": task.table_name,
        "engine_version": ENGINE_VERSION,
        "data_fingerprint": load_dataset(task.dataset).fingerprint,
        "space": task.space.discretized().to_dict(),
        "rounds_trained": task.max_round,
        "client_sample_rates": list(task.fidelity_space["client_sample_rate"].grid),
        "seeds": list(task.seeds),
        "num_clients": task.num_clients,
        "algorithm": task.algorithm,
        "alpha": task.alpha,
        "preprocessing": task.preprocessing,
    }


def _empty_arrays(task: Task, samples: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    stored = task.stored_fidelity_space()
    grid = (*task.space.discretized().grid_shape, len(stored["client_sample_rate"].grid))
    shape = (len(stored["round"].grid), *grid, len(task.seeds))
    arrays: dict[str, NDArray[Any]] = {
        "best_round": np.zeros(shape, np.uint16),
        "diverged_at": np.zeros((*grid, len(task.seeds)), np.uint16),
    }
    for which in WHICH:
        for s, split in enumerate(SPLITS):
            for metric in METRICS:
                dtype = codec.dtype(metric, samples[:, :, s])
                arrays[f"{which}_{split}_{metric}"] = np.zeros((*shape, task.num_clients), dtype)
    return arrays


def _fill(
    arrays: Mapping[str, NDArray[Any]],
    task: Task,
    where: tuple[int | slice, ...],
    stored: Mapping[str, NDArray[Any]],
    samples: NDArray[np.int64],
) -> None:
    metrics = stored["metrics"]
    rounds = np.array(task.stored_fidelity_space()["round"].grid) - 1
    best = best_rounds(metrics, samples)[:, rounds]
    grid = unit_shape(task)
    arrays["diverged_at"][where] = stored["diverged_at"].reshape(grid)
    arrays["best_round"][:, *where] = (best.T + 1).reshape(-1, *grid)
    courses = np.arange(len(metrics))[:, None]
    for which, index in (("best", best), ("current", rounds[None, :])):
        values = metrics[courses, index].swapaxes(0, 1)  # (rounds, courses, clients, splits, ..)
        for s, split in enumerate(SPLITS):
            for m, metric in enumerate(METRICS):
                codes = codec.encode(metric, values[..., s, m], samples[:, s])
                shaped = codes.reshape(-1, *grid, task.num_clients)
                arrays[f"{which}_{split}_{metric}"][:, *where] = shaped


def _card(
    task: Task, samples: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    source, data = SOURCES[task.dataset], load_dataset(task.dataset)
    fidelity: SearchSpace = task.stored_fidelity_space()
    return {
        **plan(task),
        "fidelity_space": fidelity.to_dict(),
        "num_samples": samples.tolist(),
        "class_shares": (np.bincount(data.labels) / len(data.labels)).tolist(),
        "axes": ["round", *task.space.names, "client_sample_rate", "seed", "client"],
        "codes": codec.DESCRIPTION,
        "diverged_courses": int((arrays["diverged_at"] > 0).sum()),
        "missing": "nothing"
        if len(fidelity["round"].grid) == task.max_round
        else ("rounds that are not in the fidelity grid; best rounds were chosen among all rounds"),
        "data_licence": source.licence,
        "data_citation": source.citation,
        "problem_citation": task.citation,
        "licence": "Apache-2.0",
        "build_command": f"fedhpo-gym build {build_arguments(task.table_name)}",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{platform.machine()}, {_processor()}",
        "software": {name: version(name) for name in ("numpy", "torch")},
    }


def _processor() -> str:
    """Return the name of the processor where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def plan_digest(task: Task) -> str:
    """Return a short digest of a task's plan."""
    text = json.dumps(plan(task), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
