"""Steps per second of vector environments of many tasks, beside single ones and a bare look-up.

    python benchmarks/meta_data/steps.py

All are timed in turns in one process, autoresets included; the fastest turn of each counts. The
bare look-up takes N known rows of an array of scores and features: no step can be faster. Generated
tasks are computed, and every episode has another: their making is included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.tasks.meta import MANY_TASKS

ENVS, STEPS, TURNS = 4096, 51, 5


def seconds(turn: Callable[[], None]) -> float:
    """Return what the fastest of some turns takes."""
    found = []
    for _ in range(TURNS):
        began = time.perf_counter()
        turn()
        found.append(time.perf_counter() - began)
    return min(found)


def rates(env_id: str) -> tuple[float, float, float]:
    """Return steps per second of a vector, of single environments, and of bare look-ups."""
    vector = gym.make_vec(env_id, ENVS, copy=False)
    vector.reset(seed=0)
    rng = np.random.default_rng(0)
    space = vector.single_action_space
    places = getattr(space, "n", 256)
    if space.shape:
        actions = rng.uniform(-1, 1, (STEPS, ENVS, *space.shape)).astype(np.float32)
    else:
        actions = rng.integers(places, size=(STEPS, ENVS))

    def together() -> None:
        for row in actions:
            vector.step(row)

    single = gym.make(env_id, disable_env_checker=True)

    def alone() -> None:
        single.reset(seed=0)
        for row in actions[:50]:
            single.step(row[0])

    width = vector.single_observation_space["history"].shape[0] // 50  # type: ignore[index]
    known = rng.random((64 * places, width + 10), dtype=np.float32)
    rows = rng.integers(len(known), size=(STEPS, ENVS))

    def bare() -> None:
        for row in rows:
            known[row]

    return (STEPS * ENVS / seconds(together), 50 / seconds(alone), STEPS * ENVS / seconds(bare))


def main() -> None:
    """Print a Markdown table."""
    rows = []
    for env_id in MANY_TASKS:
        vector, single, bare = rates(env_id)
        ratios = f"{vector / single:.0f}", f"{vector / bare:.3f}"
        rows.append((env_id, f"{vector:,.0f}", f"{single:,.0f}", *ratios))
    heads = ["id", "vector, steps/s", "single, steps/s", "ratio", "share of a bare look-up"]
    print(markdown_table(heads, rows))


if __name__ == "__main__":
    main()
