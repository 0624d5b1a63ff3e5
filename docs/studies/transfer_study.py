"""What agents gain by transfer: the meta-test tasks of FedHPO-B, from pools and surrogates.

    python docs/studies/transfer_study.py --out DIR

HPO-B's protocol: five initial designs of five trials per task, then up to 100 trials. Agents that
transfer learn from the meta-train tasks, which share no data with these. Results are stored
numbers, so nothing is downloaded. Finished pieces are kept: start it again after an interruption.
DIR holds one study, and says in study.json which. The report is DIR/report.md, with pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
from pieces import claim, pieces
from transfer_report import draw, report

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import agent_class, read_problem, run_episode
from fedhpo_gym.stored.meta_data import DESIGN_SIZE, DESIGNS, MODEL_SUFFICES, open_meta_data
from fedhpo_gym.studies.run import agent_seed
from fedhpo_gym.tasks.meta import META_SPACES, META_SPLITS
from studies import positive, study_parser

AGENTS = (
    *("random", "optuna-tpe", "bo-rf", "gp"),
    *("zero-shot", "bounding-box", "cts", "ablr", "rgpe", "tst-r", "taf-r", "fsbo", "pfn"),
)
"""Those that must be beaten, then those that transfer."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"bo-rf": {"initial": DESIGN_SIZE}}
MODES = ("discrete", "continuous")


@dataclass(frozen=True)
class Study:
    """Who tunes what, and for how long after the initial design."""

    modes: Sequence[str] = MODES
    spaces: Sequence[str] = META_SPACES
    agents: Sequence[str] = AGENTS
    trials: int = 100
    designs: int = DESIGNS
    tasks: int | None = None  # of a space, all by default
    split: str = "test"


def tasks_of(study: Study, mode: str, space: str) -> list[str]:
    """Return the tasks of a split that a mode answers."""
    data = open_meta_data(space)
    found = [
        i for i in data.where(study.split) if mode == "discrete" or data.tau[i] >= MODEL_SUFFICES
    ]
    some = found if study.tasks is None else found[:: max(len(found) // study.tasks, 1)]
    return [data.names[i] for i in some][: study.tasks]


def tune(study: Study, mode: str, space: str, task: str, agent: str) -> list[list[float]]:
    """Return 1 - normalised regret after the initial design and each trial, by design."""
    data, kind = open_meta_data(space), agent_class(agent)
    index = data.index(task)
    how = {"continuous": True} if mode == "continuous" else {"actions": "coordinates"}
    trials = min(study.trials + DESIGN_SIZE, data.features.shape[1])
    found = []
    with gym.make(
        f"FedHPO-B-{space}-v1", instances=task, trials=trials, disable_env_checker=True, **how
    ) as env:
        for design in range(study.designs):
            start = data.actions[index, data.arrays["initial"][index, design].astype(int)]
            problem = replace(
                read_problem(env, agent_seed(f"{space} {task}", design), transfers=kind.transfers),
                start=tuple(map(tuple, start.tolist())),
            )
            made: Any = kind(problem, **OPTIONS.get(agent, {}))
            steps = run_episode(env, made, seed=0)
            values = [1.0 - step.info["normalised_regret"] for step in steps]
            found.append(values[DESIGN_SIZE - 1 :])
    return found


def run(study: Study, out: Path, processes: int) -> dict[str, dict[str, Any]]:
    """Do what is not there yet; return results as HPO-B writes them, by mode and agent."""
    cells = {
        out / f"{mode}-{space}-{task}-{agent}.json": (mode, space, task, agent)
        for mode, space in product(study.modes, study.spaces)
        for task in tasks_of(study, mode, space)
        for agent in study.agents
    }
    done = pieces({path: partial(tune, study, *cell) for path, cell in cells.items()}, processes)
    found: dict[str, dict[str, Any]] = {mode: {} for mode in study.modes}
    for path, (mode, space, task, agent) in cells.items():
        runs = {f"test{design}": values for design, values in enumerate(done[path])}
        found[mode].setdefault(agent, {}).setdefault(space, {})[task] = runs
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--mode", choices=MODES, help="only from pools, or only from surrogates")
    parser.add_argument("--split", choices=META_SPLITS[1:], default="test", help="of tasks")
    parser.add_argument("--agents", help="names, separated by commas (default: all)")
    for name, of in (
        ("trials", "after a design"),
        ("designs", "of a task"),
        ("tasks", "of a space"),
    ):
        parser.add_argument(f"--{name}", type=positive, help=of)
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(("discrete",), ("LR",), ("random", "gp", "rgpe"), 8, designs=2, tasks=2)
    asked = {n: v for n in ("trials", "designs", "tasks") if (v := getattr(options, n))}
    study = replace(study, split=options.split, **asked)
    if options.mode:
        study = replace(study, modes=(options.mode,))
    if options.agents:
        study = replace(study, agents=tuple(options.agents.split(",")))
    claim(options.out, replace(study, modes=MODES, agents=AGENTS))
    found = run(study, options.out, options.workers)
    (options.out / "report.md").write_text(report(found, study.trials), encoding="utf-8")
    draw(found, options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
