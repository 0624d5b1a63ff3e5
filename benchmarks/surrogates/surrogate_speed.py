"""Evaluations per second that surrogates of tables answer: `python benchmarks/surrogate_speed.py`.

An evaluation is one configuration at one round, client sample rate and seed. Two things are timed
in turns, and the fastest turn counts: `look_up` of many random evaluations, and the steps of the
vector form of the trial environment with the same number of members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import measuring
import numpy as np
from measuring import number
from numpy.typing import NDArray

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.surrogates import Surrogate, list_surrogates, open_surrogate

TARGET = 100_000
HEADER = ("surrogate", "model", "`look_up`, per second", "vector environment, per second")


def of_tables() -> list[Surrogate]:
    """Return the stored surrogates of tables, in the current format."""
    found = map(open_surrogate, list_surrogates())
    return [one for one in found if one.card.get("fitted_on") == "table" and one.format == 2]


def evaluations(surrogate: Surrogate, count: int) -> dict[str, NDArray[Any]]:
    """Return random configurations and fidelities as columns."""
    rng = np.random.default_rng(0)
    columns: dict[str, NDArray[Any]] = {}
    for space in (surrogate.space, surrogate.fidelity_space):
        actions = rng.uniform(-1.0, 1.0, (count, len(space)))
        columns |= space.decode_columns(actions)
    return columns


def asker(surrogate: Surrogate, count: int) -> Callable[[], object]:
    """Return a function that looks many evaluations up."""
    columns, seeds = evaluations(surrogate, count), surrogate.seeds[:1]
    return lambda: surrogate.look_up(columns, seeds)


def stepper(surrogate: Surrogate, count: int) -> Callable[[], object]:
    """Return a function that steps so many environments at once."""
    identity = surrogate.identity
    arguments: Mapping[str, Any] = {
        **dict(identity.options),
        "backend": "surrogate",
        "seed": surrogate.seeds[0],
    }
    envs = gym.make_vec(identity.id, count, "vector_entry_point", **arguments)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = envs.action_space.sample()
    return lambda: envs.step(actions)


def measure(surrogate: Surrogate, count: int, turns: int) -> tuple[float, float]:
    """Return evaluations per second of both, in the fastest of some turns."""
    jobs = asker(surrogate, count), stepper(surrogate, count)
    best = [np.inf, np.inf]
    for job in jobs:
        job()  # reads the model
    for _ in range(turns):
        for which, job in enumerate(jobs):
            with measuring.stopwatch() as spent:
                job()
            best[which] = min(best[which], spent.cpu_s)
    return count / best[0], count / best[1]


def measure_all(count: int, turns: int) -> list[tuple[tuple[str, str], tuple[float, float]]]:
    """Return name and kind of every surrogate, and its evaluations per second."""
    return [((one.name, one.kind), measure(one, count, turns)) for one in of_tables()]


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--size", type=int, default=16_384, help="evaluations at once")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args(argv)
    load = measuring.load_average()
    os.environ["OMP_NUM_THREADS"] = "1"  # one core; threads that wait would count
    found, _ = measuring.in_fresh_process(measure_all, options.size, options.turns)
    rows = [[*words, *map(number, each)] for words, each in found]
    slowest = min(asked for _, (asked, _) in found)
    said = "reached" if slowest >= TARGET else "not reached"
    text = (
        f"{options.size:,} evaluations at once, processor time of one core, fastest of "
        f"{options.turns} turns."
    )
    verdict = f"Target of {TARGET:,} a second by `look_up`: {said}, the slowest has {slowest:,.0f}."
    command = ["python", "benchmarks/surrogate_speed.py"]
    command += [f"--size {options.size} --turns {options.turns}"]
    return measuring.write_report(
        options.out,
        "Surrogate speed",
        command,
        load,
        [text, measuring.table(HEADER, rows), verdict],
    )


if __name__ == "__main__":
    main()
