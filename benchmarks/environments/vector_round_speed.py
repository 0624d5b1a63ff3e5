"""Throughput of N round environments as one batch, beside N single ones.

Both are stepped in turns with random actions, autoresets included, in one fresh process; the
fastest turn of each counts. A step of one single environment costs the same whether there is one
or N of them, so one is timed and stands for all. What a batch gains depends on how much its
courses can share: those on one instance with one batch size share their minibatches and fill blocks
of 24 slots, those with minibatches of as many rows share their tensor operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import measuring
import numpy as np
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.errors import MissingDataError

TARGET = 50.0
ONE = [[0.5, 100]]
RATES = ["learning_rate", "weight_decay"]
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "one instance, rates of learning and decay": {"instances": ONE, "dynamic": RATES},
    "one instance, local epochs too": {"instances": ONE, "dynamic": [*RATES, "step_size"]},
    "one instance, everything": {"instances": ONE},
    "all train instances, rates of learning and decay": {"dynamic": RATES},
    "all train instances, local epochs too": {"dynamic": [*RATES, "step_size"]},
    "all train instances, everything": {},
}


def single_stepper(task: str, arguments: Mapping[str, Any]) -> Callable[[], object]:
    """Return a function that steps a single environment."""
    env = gym.make(task, **arguments)
    env.reset(seed=0)
    env.action_space.seed(0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return step


def vector_stepper(task: str, num_envs: int, arguments: Mapping[str, Any]) -> Callable[[], object]:
    """Return a function that steps a vector environment."""
    envs = gym.make_vec(task, num_envs, "vector_entry_point", **arguments)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    return lambda: envs.step(envs.action_space.sample())


def measure(
    task: str, num_envs: int, names: Sequence[str], turns: int
) -> dict[str, tuple[float, float]]:
    """Return processor seconds of a single step and of a vector step, by variant."""
    found = {}
    for name in names:
        arguments = VARIANTS[name]
        steppers = single_stepper(task, arguments), vector_stepper(task, num_envs, arguments)
        best = [np.inf, np.inf]
        for stepper in steppers:
            stepper()
        for _ in range(turns):
            for index, (stepper, calls) in enumerate(zip(steppers, (20, 2), strict=True)):
                with measuring.stopwatch() as spent:
                    for _ in range(calls):
                        stepper()
                best[index] = min(best[index], spent.cpu_s / calls)
        found[name] = best[0], best[1]
    return found


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file; without the data, say so."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-DAC-LR-BreastCancer-v0", help="environment id")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    try:
        gym.make(arguments.task)
    except MissingDataError as error:
        print(f"skipped: {error}")
        return ""
    found, peak = measuring.in_fresh_process(
        measure, arguments.task, arguments.num_envs, arguments.variants, arguments.turns
    )
    rows, best = [], 0.0
    for name, (single, many) in found.items():
        ratio = single * arguments.num_envs / many
        best = max(best, ratio)
        steps = f"{1 / single:,.1f}", f"{arguments.num_envs / many:,.0f}"
        rows.append([name, *steps, number(ratio)])
    header = ("actions", "single, steps per second", "vector, steps per second", "ratio")
    words = "reached" if best >= TARGET else "missed"
    sections = [
        f"{arguments.task}, N = {arguments.num_envs}, five rounds per step, random actions, "
        f"processor time of one core, fastest of {arguments.turns} turns; peak memory "
        f"{peak:.0f} MB.",
        measuring.table(header, rows),
        f"Target of {number(TARGET)} times: {words} with {number(best)} at best.",
    ]
    command = ["python", f"benchmarks/vector_round_speed.py --task {arguments.task}"]
    command += [f"--num-envs {arguments.num_envs} --turns {arguments.turns}"]
    if arguments.variants != list(VARIANTS):
        command += ["--variants", *(f'"{name}"' for name in arguments.variants)]
    title = "Vector round environment speed"
    return measuring.write_report(arguments.out, title, command, load, sections)


if __name__ == "__main__":
    main()
