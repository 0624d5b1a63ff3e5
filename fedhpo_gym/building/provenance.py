"""Where the numbers of a build come from, for its card."""

from __future__ import annotations

import contextlib
import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import task_federation, task_label_frequencies
from fedhpo_gym.core.processor import this_platform
from fedhpo_gym.data import SOURCES, load_dataset
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.health import LABELS
from fedhpo_gym.tasks import Task


def client_samples(task: Task) -> NDArray[np.int64]:
    """Return the (seeds, clients, splits) samples of a task."""
    return np.stack([task_federation(task, seed).num_samples for seed in task.seeds])


def provenance(task: Task, samples: NDArray[np.int64], hardware: set[str]) -> dict[str, Any]:
    """Return what the card of any design says of data, licence, software and machines."""
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
        "software": _versions("numpy", "numba", "torch"),
    }


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def this_machine(device: str, verdict: str = "") -> str:
    """Return in words what computes here, and what was found when its laws were tried."""
    here = this_platform()
    parts = (here.get(name) for name in ("machine", "processor", "vectors", "settings"))
    words = ", ".join(filter(None, (*parts, verdict)))
    if device == "cpu":
        return words
    from fedhpo_gym.fl.precision import device_name

    return f"{words}, torch {version('torch')} on {device_name(device)}"
