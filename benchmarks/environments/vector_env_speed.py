"""Steps per second of the vector form of a trial environment, beside what bounds it.

Three things are timed in turns, in one fresh process, and the fastest turn of each counts:

- the vector environment: a step of N environments with random actions, autoresets included;
- the memory limit: a bare numpy gather of N rows, at positions that are already known, from an
  array as large as the table of observations: what no program that looks N rows up can beat;
- the same environments made by `gymnasium.make`, stepped one after the other.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
import numpy as np
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.envs.trial.evaluator import PATIENCE

TARGET = 2_000_000
SINGLES = 64
"""Single environments that are really made; a step of one costs the same among more."""
Step = Callable[[], object]
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as made": {},
    "`copy=False`": {"copy": False},
    '`autoreset_mode="SameStep"`': {"autoreset_mode": "SameStep"},
    "`freeze_thaw=True`": {"freeze_thaw": True},
}


def vector_stepper(task: str, num_envs: int, arguments: Mapping[str, Any]) -> Step:
    """Return a function that steps a vector environment."""
    envs = gym.make_vec(task, num_envs, "vector_entry_point", **arguments)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(8)])
    return lambda: envs.step(next(actions))


def gatherer(task: str, num_envs: int) -> Step:
    """Return a function that takes N known rows of an array as large as all observations."""
    env = gym.make(task)
    columns = sum(int(np.prod(box.shape)) for box in env.observation_space.values())  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    cells = env.get_wrapper_attr("search_space").grid_size
    rows = rng.random((cells, columns), dtype=np.float32)
    where = itertools.cycle(rng.integers(cells, size=(8, num_envs)))
    return lambda: rows[next(where)]


def single_stepper(task: str) -> Step:
    """Return a function that steps one of several single environments."""
    envs = [gym.make(task) for _ in range(SINGLES)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
        env.action_space.seed(index)
    turn = itertools.cycle(envs)

    def step() -> None:
        env = next(turn)
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    for _ in range(SINGLES * (PATIENCE + 1)):
        step()  # reads the table, and then scores all cells for all of them
    return step


def measure(
    task: str, sizes: Sequence[int], turns: int, steps: int
) -> tuple[float, dict[tuple[str, Any], float]]:
    """Return seconds until the first step of the largest, and per step of everything."""
    with measuring.stopwatch() as warm_up:  # the first scores all cells for all others
        vector_stepper(task, sizes[-1], {})()
    jobs: dict[tuple[str, Any], tuple[Step, int]] = {}
    for size in sizes:
        jobs["vector", size] = vector_stepper(task, size, {}), steps
        jobs["limit", size] = gatherer(task, size), steps
    for name, arguments in VARIANTS.items():
        jobs["variant", name] = vector_stepper(task, sizes[-1], arguments), steps
    jobs["single", 1] = single_stepper(task), 4 * SINGLES
    return warm_up.cpu_s, measuring.fastest(jobs, turns)


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-LR-CreditG-v0", help="environment id")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024, 4096])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="steps of each size in a turn")
    options = parser.parse_args(argv)
    sizes = sorted(options.sizes)
    (warm_up, found), peak = measuring.in_fresh_process(
        measure, options.task, sizes, options.turns, options.steps
    )
    single = 1.0 / found["single", 1]
    rows = [["`gymnasium.make`, one after the other", f"{single:,.0f}", "1", ""]]
    for size in sizes:
        rate, limit = size / found["vector", size], size / found["limit", size]
        rows.append([f"N = {size}", f"{rate:,.0f}", number(rate / single), number(limit / rate)])
        rows.append([f"limit, N = {size}", f"{limit:,.0f}", number(limit / single), "1"])
    rates = {name: sizes[-1] / found["variant", name] for name in VARIANTS}
    variants = [[name, f"{rate:,.0f}", number(rate / single)] for name, rate in rates.items()]
    rate = sizes[-1] / found["vector", sizes[-1]]
    words = "reached" if rate >= TARGET else "missed"
    head = ("", "steps per second", "times a single environment", "times slower than the limit")
    return measuring.write_report(
        options,
        "Vector environment speed",
        f"{options.task}, tabular, random actions, processor time of one core, fastest of "
        f"{options.turns} turns of {options.steps} steps. Making the environment with N = "
        f"{sizes[-1]}, reading the table, scoring all its cells and the first step took "
        f"{number(warm_up)} s; peak memory of the whole run {peak:.0f} MB.",
        measuring.table(head, rows),
        measuring.table((f"N = {sizes[-1]}", *head[1:3]), variants),
        f"Target of {TARGET:,} steps per second: {words} with {rate:,.0f} at N = {sizes[-1]}.",
    )


if __name__ == "__main__":
    measuring.run(main)
