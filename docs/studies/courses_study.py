"""FedEx, FTS and DP-FTS-DE on rounds of one course, beside clients that try random points.

    python docs/studies/courses_study.py --out DIR

Every client of a course has its own configuration in each of 100 rounds. A seed gives all agents
the same new instance: partition, initialisation, minibatches. Finished courses are kept: start
it again after an interruption. BreastCancer and Digits need no download; Vehicle joins where
`fedhpo-gym download Vehicle` has fetched it. The report is DIR/report.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from pieces import claim, pieces

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent, read_problem, run_episode
from fedhpo_gym.agents.base import Observation, SearchProblem, Step
from fedhpo_gym.agents.clients import ClientAgent
from fedhpo_gym.core.arrays import Singles
from fedhpo_gym.core.seeding import stream
from studies import cell, positive, study_parser, table, tables_here

LIMIT = 10.0  # nats; no useful model of these tables has such a loss
NAMES = {
    "uniform": "uniform random",
    "middle": "uniform, middle half",
    "fedex": "FedEx",
    "fts": "FTS",
    "dp-fts-de": "DP-FTS-DE",
}


@dataclass(frozen=True)
class Study:
    """What is run: each agent on each table and seed.

    Attributes:
        first: seed of the first instance; those from 1000 served to choose the settings of FTS.
    """

    problems: tuple[str, ...]
    seeds: int = 10
    first: int = 2000
    horizon: int = 100
    alpha: float = 0.5
    agents: tuple[str, ...] = tuple(NAMES)


class UniformClients(ClientAgent):
    """Draws a new configuration for every client in every round, from a share of every range."""

    def __init__(self, problem: SearchProblem, *, width: float) -> None:
        super().__init__(problem)
        self._width = width
        self._rng = stream(self.seed, "uniform_clients")

    def ask(self, observation: Observation) -> Singles:
        return self._rng.uniform(-self._width, self._width, self.action_space.shape).astype(
            np.float32
        )

    def tell(self, step: Step) -> None:
        """Learn nothing."""


def run_course(study: Study, problem: str, name: str, seed: int) -> dict[str, Any]:
    """Return the validation losses of a course (nats), its return, and whether it ended early."""
    env = gym.make(
        f"FedHPO-DAC-LR-{problem}-v1",
        per_client=True,
        horizon=study.horizon,
        instances=[[study.alpha, study.first + seed]],
    )
    agent: Any
    if name in ("uniform", "middle"):
        agent = UniformClients(read_problem(env, seed), width=0.5 if name == "middle" else 1.0)
    else:
        agent = make_agent(name, env, seed)
    steps = list(run_episode(env, agent, seed))
    env.close()
    return {
        "val_loss": [float(step.info["val_loss"]) for step in steps],
        "reward": float(sum(step.reward for step in steps)),
    }


def diverged(course: Mapping[str, Any], study: Study) -> bool:
    """Return whether a course ended early, or with a loss above the limit."""
    return len(course["val_loss"]) < study.horizon or course["val_loss"][-1] > LIMIT


def report(study: Study, found: Mapping[tuple[str, str], Sequence[Any]]) -> str:
    """Return the table: a row per problem and agent; differences are paired by seed."""
    rows = []
    for problem in study.problems:
        rewards = {
            name: np.array([one["reward"] for one in found[problem, name]]) for name in study.agents
        }
        for name in study.agents:
            courses = found[problem, name]
            last = [LIMIT if diverged(one, study) else one["val_loss"][-1] for one in courses]
            lost = sum(diverged(one, study) for one in courses)
            row = [problem, NAMES[name], f"{lost} of {len(courses)}", f"{np.median(last):.3f}"]
            row.append(cell(rewards[name], 2))
            row += [
                "-" if name == other else cell(rewards[name] - rewards[other], 2, sign=True)
                for other in ("uniform", "middle", "fedex")
            ]
            rows.append(row)
    head = ["problem", "agent", "diverged", "median last loss, nats", "return"]
    return table([*head, "minus uniform's", "minus middle half's", "minus FedEx's"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="courses per agent (default: 10)")
    options = parser.parse_args(arguments)
    if options.quick:
        study = Study(("BreastCancer",), seeds=2, horizon=5)
    else:
        study = Study(tables_here(("BreastCancer", "Digits", "Vehicle")))
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, study)
    jobs = {
        options.out / f"{problem}-{name}-{seed}.json": (problem, name, seed)
        for seed, problem, name in product(range(study.seeds), study.problems, study.agents)
    }
    found: dict[tuple[str, str], list[Any]] = {}
    courses = {path: partial(run_course, study, *cell) for path, cell in jobs.items()}
    for path, course in pieces(courses, options.workers).items():
        found.setdefault(jobs[path][:2], []).append(course)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    print(report(study, found))


if __name__ == "__main__":
    main()
