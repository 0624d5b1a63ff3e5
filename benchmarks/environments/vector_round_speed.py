"""Throughput of N round environments as one batch, beside N single ones.

Both are stepped in turns with random actions, autoresets included, in one fresh process; the
fastest turn of each counts. A step of one single environment costs the same whether there is one
or N of them, so one is timed and stands for all. What a batch gains depends on how much its
courses can share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments

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
) -> dict[tuple[str, int], float]:
    """Return processor seconds per step of one environment, and of many, by variant."""
    jobs = {}
    for name in names:
        jobs[name, 1] = single_stepper(task, VARIANTS[name]), 20
        jobs[name, num_envs] = vector_stepper(task, num_envs, VARIANTS[name]), 2
    return measuring.fastest(jobs, turns)


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-DAC-LR-BreastCancer-v0", help="environment id")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args(argv)
    many = options.num_envs
    found, peak = measuring.in_fresh_process(
        measure, options.task, many, options.variants, options.turns
    )
    rates = {name: (1 / found[name, 1], many / found[name, many]) for name in options.variants}
    best = max(vector / single for single, vector in rates.values())
    rows = [
        [name, f"{single:,.1f}", f"{vector:,.0f}", number(vector / single)]
        for name, (single, vector) in rates.items()
    ]
    header = ("actions", "single, steps per second", "vector, steps per second", "ratio")
    return measuring.write_report(
        options,
        "Vector round environment speed",
        f"{options.task}, N = {many}, five rounds per step, random actions, processor time of one "
        f"core, fastest of {options.turns} turns; peak memory {peak:.0f} MB.",
        measuring.table(header, rows),
        f"Target of {number(TARGET)} times: {'reached' if best >= TARGET else 'missed'} with "
        f"{number(best)} at best.",
    )


if __name__ == "__main__":
    measuring.run(main)
