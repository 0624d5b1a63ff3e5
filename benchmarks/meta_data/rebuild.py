"""Computes ten tasks of FedHPO-B again, and compares them bit for bit with the stored ones.

    python benchmarks/meta_data/rebuild.py

A task is recomputed as `fedhpo-gym meta-data` computes it. It takes some minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.building.meta_data import compute_task
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.tasks.meta import META_SPACES, MetaTask, meta_tasks

TASKS = 10
NAMES = ("own", "values", "repeats", "features")


def chosen() -> list[tuple[str, MetaTask]]:
    """Return ten tasks of all spaces, drawn by a fixed seed among those of few rows."""
    rng = stream(0, "rebuild")
    found = []
    for place in range(TASKS):
        space = META_SPACES[place % len(META_SPACES)]
        names = [one for one in meta_tasks(space) if one.task.num_clients <= 50]
        found.append((space, names[int(rng.integers(len(names)))]))
    return found


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of some arrays, by name."""
    total = hashlib.sha256()
    for name in NAMES:
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()[:16]


def main() -> None:
    """Print a line per task; fail where one differs."""
    equal = 0
    for space, meta in tqdm(chosen(), unit="task", disable=None):
        data = open_meta_data(space)
        index = data.index(meta.name)
        stored = digest({name: data.arrays[name][index] for name in NAMES})
        again = digest(compute_task(meta))
        equal += stored == again
        print(f"{space} {meta.name}: stored {stored}, computed again {again}")
    print(f"{equal} of {TASKS} are equal")
    raise SystemExit(equal < TASKS)


if __name__ == "__main__":
    main()
