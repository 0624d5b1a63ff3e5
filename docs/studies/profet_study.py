"""Does Profet's Forrester study hold: few real tasks mislead, generated ones do not?

    python docs/studies/profet_study.py --out DIR

Klein et al. (2019), section 5.2: six methods on many functions of a family, on nine of them, and on
tasks that a meta-model of the nine generates. Finished pieces are kept: start it again after an
interruption. DIR holds one study, and says in study.json which. The report is DIR/report.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pieces import claim, pieces
from profet_bohamiann import minimise
from profet_report import report
from profet_tasks import (
    HIGHEST,
    OPTIONS,
    SCENARIOS,
    Array,
    Study,
    Task,
    family_of,
    functions,
    runs_of,
)

from fedhpo_gym.agents import agent_class
from fedhpo_gym.agents.base import SearchProblem, Step
from fedhpo_gym.profet import ProfetModel
from fedhpo_gym.profet.model import LINE
from fedhpo_gym.studies.run import agent_seed
from studies import positive, study_parser

TOGETHER = 30
"""Runs of BOHAMIANN whose networks are trained at once."""


def curves(study: Study, out: Path, scenario: str, method: str) -> list[list[float]]:
    """Return what every run saw, one row each."""
    each = runs_of(study, scenario)
    tasks = [task for task in functions(study, out, scenario) for _ in range(each)]
    where = f"{study.family} {scenario}"
    if method != "bohamiann":
        return [
            tuned(study, method, task, agent_seed(where, run)) for run, task in enumerate(tasks)
        ]
    torch.set_num_threads(1)
    found: list[list[float]] = []
    for first in range(0, len(tasks), TOGETHER):
        some = tasks[first : first + TOGETHER]
        seen = minimise(
            partial(at_once, some), len(some), study.evaluations, agent_seed(where, first)
        )
        found += seen.tolist()
    return found


def at_once(tasks: Sequence[Task], x: Array) -> Array:
    """Return the value of each task at its own of (R, D) points."""
    return np.array([task(point[None])[0] for task, point in zip(tasks, x, strict=True)])


def tuned(study: Study, method: str, task: Task, seed: int) -> list[float]:
    """Return what one run of an agent saw."""
    problem = SearchProblem(gym.spaces.Box(-1.0, 1.0, (1,), np.float32), LINE, seed=seed)
    make: Any = agent_class(method)
    agent = make(problem, **OPTIONS.get(method, {}))
    seen = []
    for _ in range(study.evaluations):
        action = agent.ask({})
        value = float(task((action[None].astype(np.float64) + 1.0) / 2.0)[0])
        agent.tell(Step(action, -value))
        seen.append(value)
    return seen


def fit(study: Study, out: Path) -> None:
    """Fit the meta-model of the few tasks, unless that was done."""
    folder = out / f"model-{study.family}"
    if not (folder / "profet.json").is_file():
        how = {} if study.steps is None else {"feature_steps": study.steps, "burn_in": study.steps}
        made_by = f"python docs/studies/profet_study.py --family {study.family} --out {out}"
        ProfetModel.fit(
            family_of(study), samples=study.tasks, seed=study.seed, made_by=made_by, **how
        ).save(folder)


def run(
    study: Study, out: Path, processes: int, scenarios: Sequence[str] = SCENARIOS
) -> dict[tuple[str, str], Array]:
    """Do what is not there yet; return (runs, evaluations) values by scenario and method."""
    if "generated" in scenarios:
        fit(study, out)
    cells = {
        out / f"{study.family}-{scenario}-{method}.json": (scenario, method)
        for scenario, method in product(scenarios, study.methods)
    }
    done = pieces(
        {path: partial(curves, study, out, *cell) for path, cell in cells.items()}, processes
    )
    return {cell: np.array(done[path]) for path, cell in cells.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--family", choices=HIGHEST, default="paper", help="of functions")
    for name, of in (("tasks", "of a scenario"), ("runs", "of a task")):
        parser.add_argument(f"--{name}", type=positive, help=of)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="do these, no report")
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(
            tasks=18, runs=1, evaluations=6, methods=("random", "de", "bohamiann"), steps=200
        )
    study = replace(
        study,
        family=options.family,
        **{n: v for n in ("tasks", "runs") if (v := getattr(options, n))},
    )
    claim(options.out, study)
    found = run(study, options.out, options.workers, options.only or SCENARIOS)
    if not options.only:
        (options.out / "report.md").write_text(report(study, options.out, found), encoding="utf-8")
        print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
