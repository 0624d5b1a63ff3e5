"""How many files, calls and crossings between files a journey through the environments takes.

A call is one of a function of this package; it crosses where the nearest frame of the package below
it lies in another file. `python benchmarks/house/journeys.py` prints a row per journey.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np

import fedhpo_gym
from fedhpo_gym.errors import FedHPOError

PACKAGE = str(Path(fedhpo_gym.__file__).parent)
TASK = "FedHPO-LR-CreditG-v1"
ROUNDS = 9


def traced(journey: Callable[[], object]) -> tuple[int, int, int]:
    """Return the files, the calls and the crossings of a journey."""
    files: set[str] = set()
    counts = [0, 0]

    def listen(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE):
            return
        files.add(file)
        below = frame.f_back
        while below is not None and not below.f_code.co_filename.startswith(PACKAGE):
            below = below.f_back
        counts[0] += 1
        counts[1] += below is not None and below.f_code.co_filename != file

    sys.setprofile(listen)
    try:
        journey()
    finally:
        sys.setprofile(None)
    return len(files), *counts


def stepping(env_id: str, **arguments: Any) -> Callable[[], object]:
    """Return the journey of a step, after a reset and a step that have warmed everything."""
    env = gym.make(env_id, **arguments)
    env.action_space.seed(0)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    action = env.action_space.sample()
    return lambda: env.step(action)


def main() -> None:
    """Trace all journeys that the data here allow."""
    still = {"fidelity": {"round": ROUNDS}, "seed": 0}
    journeys: dict[str, Callable[[], Callable[[], object]]] = {
        "`gym.make`, table": lambda: lambda: gym.make(TASK, backend="tabular"),
        "table step": lambda: stepping(TASK, backend="tabular"),
        "surrogate step": lambda: stepping(TASK, backend="surrogate"),
        "raw trial of nine rounds": lambda: stepping(TASK, backend="raw", **still),
        "DAC step of five rounds": lambda: stepping(TASK.replace("FedHPO", "FedHPO-DAC")),
        "table step of 64": lambda: many(64),
    }
    rows = ["| journey | files | calls | crossings |", "|---|---|---|---|"]
    for name, prepare in journeys.items():
        try:
            rows.append(f"| {name} | {' | '.join(f'{n:,}' for n in traced(prepare()))} |")
        except FedHPOError as error:
            rows.append(f"| {name} | {error} | | |")
    sys.stdout.write("\n".join(rows) + "\n")


def many(number: int) -> Callable[[], object]:
    """Return the journey of a step of many environments on a table."""
    env = gym.make_vec(TASK, number, backend="tabular")
    env.reset(seed=0)
    actions = np.zeros((number, *env.single_action_space.shape), dtype=np.float32)  # type: ignore[misc]
    env.step(actions)
    return lambda: env.step(actions)


if __name__ == "__main__":
    main()
