"""Evaluations per second that surrogates of tables answer.

An evaluation is one configuration at one round, client sample rate and seed. Two things are timed
in turns, and the fastest turn counts: `look_up` of many random evaluations, and the steps of the
vector form of the trial environment with the same number of members.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
import numpy as np
from measuring import number
from numpy.typing import NDArray

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.stored.surrogate import Surrogate, list_surrogates, open_surrogate

TARGET = 100_000
HEADER = ("surrogate", "model", "`look_up`, per second", "vector environment, per second")


def of_tables() -> list[Surrogate]:
    """Return the stored surrogates of tables."""
    found = map(open_surrogate, list_surrogates())
    return [one for one in found if one.card.get("fitted_on") == "table"]


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


def measure(count: int, turns: int) -> list[tuple[str, str, float, float]]:
    """Return name and kind of every surrogate, and evaluations per second of both."""
    found = []
    for one in of_tables():
        seconds = measuring.fastest({0: (asker(one, count), 1), 1: (stepper(one, count), 1)}, turns)
        found.append((one.name, one.kind, count / seconds[0], count / seconds[1]))
    return found


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--size", type=int, default=16_384, help="evaluations at once")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"  # one core; threads that wait would count
    found, _ = measuring.in_fresh_process(measure, options.size, options.turns)
    slowest = min(asked for *_, asked, _ in found)
    return measuring.write_report(
        options,
        "Surrogate speed",
        f"{options.size:,} evaluations at once, processor time of one core, fastest of "
        f"{options.turns} turns.",
        measuring.table(HEADER, [[name, kind, *map(number, both)] for name, kind, *both in found]),
        f"Target of {TARGET:,} a second by `look_up`: "
        f"{'reached' if slowest >= TARGET else 'not reached'}, the slowest has {slowest:,.0f}.",
    )


if __name__ == "__main__":
    measuring.run(main)
