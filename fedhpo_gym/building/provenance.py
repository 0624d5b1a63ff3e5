"""Where the numbers of a build come from, for its card."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.courses.training import task_federation, task_label_frequencies
from fedhpo_gym.datasets import SOURCES, load_dataset
from fedhpo_gym.fl.precision import device_name
from fedhpo_gym.landscape import LABELS
from fedhpo_gym.tables import codec
from fedhpo_gym.tasks import Task


def client_samples(task: Task) -> NDArray[np.int64]:
    """Return the (seeds, clients, splits) samples of a task."""
    return np.stack([task_federation(task, seed).num_samples for seed in task.seeds])


def provenance(task: Task, samples: NDArray[np.int64], hardware: set[str]) -> dict[str, Any]:
    """Return what the card of any design says of data, licence, software and machines.

    Args:
        task: the task.
        samples: see `client_samples`.
        hardware: the machines that computed the units.
    """
    source, data = SOURCES[task.dataset], load_dataset(task.dataset)
    return {
        "num_samples": samples.tolist(),
        LABELS: task_label_frequencies(task),
        "class_shares": (np.bincount(data.labels) / len(data.labels)).tolist(),
        "codes": codec.DESCRIPTION,
        "data_licence": source.licence,
        "data_citation": source.citation,
        "problem_citation": task.citation,
        "licence": "Apache-2.0",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": "; ".join(sorted(hardware)),
        "software": {name: version(name) for name in ("numpy", "torch")},
    }


def this_machine(device: str) -> str:
    """Return in words what computes here: architecture, processor, and any other torch device."""
    words = f"{platform.machine()}, {_processor()}"
    if device == "cpu":
        return words
    return f"{words}, torch {version('torch')} on {device_name(device)}"


def _processor() -> str:
    """Return the name of the processor where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
