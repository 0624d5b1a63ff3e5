"""Steps per second of the vector form of a trial environment, beside what bounds it.

Three things are timed in turns, in one fresh process, and the fastest turn of each counts:

- the vector environment: a step of N environments with random actions, autoresets included;
- the memory limit: a bare numpy gather of N rows, at positions that are already known, from an
  array as large as the table of observations: what no program that looks N rows up can beat;
- the same environments made by `gymnasium.make`, stepped one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import measuring
import numpy as np
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.envs.trial.cells import PATIENCE
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.tables import open_table
from fedhpo_gym.tasks import get_task

TARGET = 2_000_000
SINGLES = 64
"""Single environments that are really made; a step of one costs the same among more."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as made": {},
    "`copy=False`": {"copy": False},
    '`autoreset_mode="SameStep"`': {"autoreset_mode": "SameStep"},
    "`freeze_thaw=True`": {"freeze_thaw": True},
}


def seconds(function: Callable[[int], object], calls: int) -> float:
    """Return processor seconds per call."""
    with measuring.stopwatch() as spent:
        for call in range(calls):
            function(call)
    return spent.cpu_s / calls


def vector_stepper(task: str, num_envs: int, arguments: Mapping[str, Any]) -> tuple[Any, float]:
    """Return a function that steps a vector environment, and seconds until its second step."""
    with measuring.stopwatch() as warm_up:
        envs = gym.make_vec(task, num_envs, "vector_entry_point", **arguments)
        envs.reset(seed=0)
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(8)]
        envs.step(actions[0])
    return lambda call: envs.step(actions[call % len(actions)]), warm_up.cpu_s


def gatherer(task: str, num_envs: int) -> Callable[[int], object]:
    """Return a function that takes N known rows of an array as large as all observations."""
    env = gym.make(task)
    columns = sum(int(np.prod(box.shape)) for box in env.observation_space.values())  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    cells = env.get_wrapper_attr("search_space").grid_size
    rows = rng.random((cells, columns), dtype=np.float32)
    where = rng.integers(cells, size=(8, num_envs))
    return lambda call: rows[where[call % len(where)]]


def single_stepper(task: str) -> Callable[[int], object]:
    """Return a function that steps one of several single environments."""
    envs = [gym.make(task) for _ in range(SINGLES)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
        env.action_space.seed(index)

    def step(call: int) -> None:
        env = envs[call % SINGLES]
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    for _ in range(PATIENCE + 1):
        step(0)  # reads the table, and then scores all cells for all of them
    return step


def measure(task: str, sizes: Sequence[int], turns: int, steps: int) -> dict[str, Any]:
    """Return processor seconds per call: `vector`, `limit` by N; `variant`; `single`; `warm_up`."""
    largest = sizes[-1]
    jobs: dict[tuple[str, Any], tuple[Callable[[int], object], int]] = {}
    _, warm_up = vector_stepper(task, largest, {})  # the first scores all cells for all others
    for size in sizes:
        jobs["vector", size] = vector_stepper(task, size, {})[0], steps
        jobs["limit", size] = gatherer(task, size), steps
    for name, arguments in VARIANTS.items():
        jobs["variant", name] = vector_stepper(task, largest, arguments)[0], steps
    jobs["single", 1] = single_stepper(task), 4 * SINGLES
    best = dict.fromkeys(jobs, np.inf)
    for _ in range(turns):
        for key, (function, calls) in jobs.items():
            best[key] = min(best[key], seconds(function, calls))
    found: dict[str, Any] = {"vector": {}, "limit": {}, "variant": {}, "single": {}}
    for (kind, which), spent in best.items():
        found[kind][which] = spent
    return {**found, "single": found["single"][1], "warm_up": warm_up}


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file; without a table, say so."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-LR-CreditG-v0", help="environment id")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024, 4096])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="steps of each size in a turn")
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    try:
        open_table(get_task(arguments.task).table_name)
    except MissingDataError as error:
        print(f"skipped: {error}")
        return ""
    sizes = sorted(arguments.sizes)
    found, peak = measuring.in_fresh_process(
        measure, arguments.task, sizes, arguments.turns, arguments.steps
    )
    single = 1.0 / found["single"]
    sections = [
        f"{arguments.task}, tabular, random actions, processor time of one core, fastest of "
        f"{arguments.turns} turns of {arguments.steps} steps. Making the environment with N = "
        f"{sizes[-1]}, reading the table, scoring all its cells and the first step took "
        f"{number(found['warm_up'])} s; peak memory of the whole run {peak:.0f} MB.",
        _size_table(found, sizes, single),
        _variant_table(found, sizes[-1], single),
        _verdict(found, sizes[-1]),
    ]
    command = ["python", "benchmarks/vector_env_speed.py"]
    command += [f"--task {arguments.task} --sizes {' '.join(map(str, sizes))}"]
    command += [f"--turns {arguments.turns} --steps {arguments.steps}"]
    title = "Vector environment speed"
    return measuring.write_report(arguments.out, title, command, load, sections)


def _size_table(found: Mapping[str, Any], sizes: Sequence[int], single: float) -> str:
    rows = [["`gymnasium.make`, one after the other", f"{single:,.0f}", "1", ""]]
    for size in sizes:
        rate, limit = size / found["vector"][size], size / found["limit"][size]
        rows.append([f"N = {size}", f"{rate:,.0f}", number(rate / single), number(limit / rate)])
        rows.append([f"limit, N = {size}", f"{limit:,.0f}", number(limit / single), "1"])
    header = ("", "steps per second", "times a single environment", "times slower than the limit")
    return measuring.table(header, rows)


def _variant_table(found: Mapping[str, Any], size: int, single: float) -> str:
    rows = [
        [name, f"{size / spent:,.0f}", number(size / spent / single)]
        for name, spent in found["variant"].items()
    ]
    return measuring.table((f"N = {size}", "steps per second", "times a single environment"), rows)


def _verdict(found: Mapping[str, Any], size: int) -> str:
    rate = size / found["vector"][size]
    words = "reached" if rate >= TARGET else "missed"
    return f"Target of {TARGET:,} steps per second: {words} with {rate:,.0f} at N = {size}."


if __name__ == "__main__":
    main()
