"""Who profits from workers: agents with 1 to 32 of them, whose time is simulated.

    python docs/studies/workers_study.py --out DIR

An agent is asked whenever a worker is free, and told of trials in the order of their ends. Every
run has the same simulated seconds, so W workers do about W times as much. Answers come from stored
numbers, so nothing is downloaded. Finished pieces are kept: start it again after an interruption.
DIR holds one study, and says in study.json which. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from pieces import claim, pieces
from workers_report import draw, report

import fedhpo_gym
from fedhpo_gym.agents import agent_class, make_agent, run_crew
from fedhpo_gym.records.incumbents import Trials, incumbents
from studies import positive, study_parser

AGENTS = ("random", "optuna-tpe", "hyperband", "bohb")
PROBLEMS = ("LR-Synthetic", "CNN-FEMNIST")
SHARES = tuple(np.linspace(0.02, 1.0, 50).round(2).tolist())


@dataclass(frozen=True)
class Study:
    """What is tuned, and for how long: simulated time of so many full courses one by one."""

    problems: Sequence[str] = PROBLEMS
    agents: Sequence[str] = AGENTS
    workers: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: int = 5
    courses: int = 4


def environment(study: Study, problem: str, agent: str) -> gym.Env[Any, Any]:
    """Make a problem for an agent: full fidelity, unless the agent chooses it."""
    name = f"FedHPO-{problem}-v1"
    with gym.make(name, disable_env_checker=True) as plain:
        fidelities = plain.get_wrapper_attr("fidelity_space")
    full = {one.name: one.high for one in fidelities.dimensions}
    with gym.make(name, disable_env_checker=True, fidelity=full) as plain:
        middle = np.zeros(plain.action_space.shape, np.float32)
        course_s = plain.get_wrapper_attr("cost_of")(middle).time_s
    free = agent_class(agent).fidelity
    kept = {one: value for one, value in full.items() if one != free}
    return gym.make(
        name,
        disable_env_checker=True,
        fidelity=kept,
        freeze_thaw=free is not None,
        budget_s=study.courses * course_s,
    )


def tune(study: Study, problem: str, agent: str, workers: int) -> dict[str, Any]:
    """Return validation losses of the incumbent at `SHARES` of the budget, and trials, by seed."""
    curves, trials = [], []
    with environment(study, problem, agent) as env:
        budget_s = env.spec.kwargs["budget_s"]  # type: ignore[union-attr]
        crew = fedhpo_gym.parallel(env, workers)
        for seed in range(study.seeds):
            infos = [one.info for one in run_crew(crew, make_agent(agent, env, seed), seed)]
            tried = Trials(
                time_s=np.array([info["elapsed_s"] for info in infos]),
                value=np.array([info["objectives"]["val_loss"] for info in infos]),
                level=np.array([float(info["fidelity"]["round"]) for info in infos]),
            )
            best = np.concatenate([[np.nan], tried.value[incumbents(tried)]])
            at = np.searchsorted(tried.time_s, np.array(SHARES) * budget_s, side="right")
            curves.append([None if np.isnan(value) else float(value) for value in best[at]])
            trials.append(len(infos))
    return {"curves": curves, "trials": trials}


def run(study: Study, out: Path, processes: int) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """Do what is not there yet; return what every problem, agent and number of workers brought."""
    cells = {
        out / f"{problem}-{agent}-{workers}.json": (problem, agent, workers)
        for problem, agent, workers in product(study.problems, study.agents, study.workers)
    }
    done = pieces({path: partial(tune, study, *cell) for path, cell in cells.items()}, processes)
    return {cell: done[path] for path, cell in cells.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="runs per cell (default: 5)")
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(("CNN-FEMNIST",), ("random", "hyperband"), (1, 4), seeds=2, courses=2)
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, study)
    found = run(study, options.out, options.workers)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    draw(study, SHARES, found, options.out / "workers.png")
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
