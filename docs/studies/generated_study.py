"""Is a generated task like a real one? Held-out tasks of FedHPO-B beside those of the meta-model.

    python docs/studies/generated_study.py --out DIR

What tasks are like on the same configurations; whether a classifier tells them apart; whether eight
optimizers rank alike. Held-out tasks are those of meta-validation and meta-test, of which the
meta-model has seen none. Finished pieces are kept, and those of generated tasks are named after
their generator: with another one, only these are computed again. The report is DIR/report.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import gymnasium as gym
from generated_report import HELD_OUT, draw, report
from generated_tasks import describe, generated_tasks, real_tasks, shared_actions
from pieces import claim, pieces
from transfer_study import OPTIONS

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import agent_class, read_problem, run_episode
from fedhpo_gym.stored.meta_data import MODEL_SUFFICES, open_meta_data
from fedhpo_gym.stored.task_generator import open_generator
from fedhpo_gym.studies.run import agent_seed
from fedhpo_gym.tasks.meta import GENERATED_SPACES, META_SPLITS
from studies import positive, rewrite, study_parser

AGENTS = ("random", "de", "cma-es", "optuna-tpe", "bo-rf", "gp", "zero-shot", "tst-r")
PARTS = ("tasks", "tuning")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "generated": {},
    "noise-free": {"noise": "none"},
    "pool": {"actions": "coordinates"},
    "surrogate": {"continuous": True},
}
"""Generated tasks, twice, and real ones, twice; and how each is made."""


@dataclass(frozen=True)
class Study:
    """How many tasks are described, and who tunes how many."""

    spaces: Sequence[str] = GENERATED_SPACES
    agents: Sequence[str] = AGENTS
    trials: int = 50
    described: int = 1000  # generated tasks
    tuned: int = 60  # generated tasks
    tasks: int | None = None  # real ones of a split that are tuned, all by default


def generator_of(space: str) -> str:
    """Return how pieces name a generator."""
    return open_generator(space).fingerprint.rpartition(":")[2][:8]


def describe_split(space: str, split: str) -> dict[str, Any]:
    """Return what the tasks of a split are like, and of which survey each is."""
    data = open_meta_data(space)
    found = describe(real_tasks(data, data.where(split)), data)
    return found | {"surveys": [data.surveys[i] for i in data.where(split)]}


def describe_generated(space: str, number: int) -> dict[str, Any]:
    """Return what generated tasks are like."""
    data, generator = open_meta_data(space), open_generator(space)
    return describe(generated_tasks(generator, range(number), shared_actions(data)), data)


def tune(study: Study, space: str, kind: str, task: str | int) -> dict[str, dict[str, list[float]]]:
    """Return what each agent reaches after each trial, as shares of an optimum, from 0 to 1.

    By "true" that is 1 - normalised regret. By "told" it is the best score that was told so far, as
    a share of the best that any agent was told: of real tasks nobody knows more.
    """
    how, name = KINDS[kind], f"FedHPO-{'B' if isinstance(task, str) else 'Generated'}-{space}-v1"
    true, told = {}, {}
    with gym.make(
        name, instances=task, trials=study.trials, disable_env_checker=True, **how
    ) as env:
        for agent in study.agents:
            transfers = agent_class(agent).transfers
            problem = read_problem(env, agent_seed(f"{space} {task}", 0), transfers=transfers)
            made: Any = agent_class(agent)(problem, **OPTIONS.get(agent, {}))
            steps = list(run_episode(env, made, seed=0))
            true[agent] = [1.0 - step.info["normalised_regret"] for step in steps]
            told[agent] = list(accumulate((step.info["score"] for step in steps), max))
    best = max(1e-9, *(one[-1] for one in told.values()))
    return {
        "true": true,
        "told": {agent: [score / best for score in one] for agent, one in told.items()},
    }


def tuned_tasks(study: Study, space: str) -> dict[tuple[str, str | int], str]:
    """Return kinds and tasks that are tuned, with their surveys; a generated task is its own."""
    data, found = open_meta_data(space), dict[tuple[str, str | int], str]()
    for split in HELD_OUT:
        for i in data.where(split)[: study.tasks]:
            if data.scores[i, :, -1, -1].max() > 0:
                found["pool", data.names[i]] = data.surveys[i]
            if data.tau[i] >= MODEL_SUFFICES:
                found["surrogate", data.names[i]] = data.surveys[i]
    found |= {("generated", i): str(i) for i in range(study.tuned)}
    return found | {("noise-free", i): str(i) for i in range(max(study.tuned // 2, 1))}


def run(study: Study, out: Path, processes: int, part: str | None = None) -> dict[str, Any]:
    """Do what is not there yet; return what tasks are like, and runs, by search space."""
    jobs: dict[str, dict[Path, Any]] = {one: {} for one in PARTS}
    places: dict[Path, tuple[str, ...]] = {}
    for space in study.spaces:
        made = generator_of(space)
        for split in META_SPLITS:
            path = out / f"tasks-{space}-{split}.json"
            jobs["tasks"][path] = partial(describe_split, space, split)
            places[path] = (space, split)
        path = out / f"tasks-{space}-generated-{made}.json"
        jobs["tasks"][path] = partial(describe_generated, space, study.described)
        places[path] = (space, "generated")
        for (kind, task), survey in tuned_tasks(study, space).items():
            name = task if isinstance(task, str) else f"{task}-{made}"
            path = out / f"tuned-{space}-{kind}-{name}.json"
            jobs["tuning"][path] = partial(tune, study, space, kind, task)
            places[path] = (space, kind, survey, str(task))
    parts = [one for one in PARTS if part in (None, one)]
    done = pieces({path: job for one in parts for path, job in jobs[one].items()}, processes)
    found: dict[str, Any] = {s: {one: {} for one in PARTS} for s in study.spaces}
    for path, value in done.items():
        space, kind, *of = places[path]
        if of:
            survey, task = of
            scored = {kind: value["told"], "by truth": value["true"]}
            if kind != "generated":
                scored = {kind: value["true"]}
            for name, runs in scored.items():
                found[space]["tuning"].setdefault(name, {})[task] = {"survey": survey, "runs": runs}
        else:
            found[space]["tasks"][kind] = value
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--part", choices=PARTS, help="only what tasks are like, or only tuning")
    parser.add_argument("--page", type=Path, help="whose tables and picture are replaced")
    parser.add_argument("--space", choices=GENERATED_SPACES, help="only one search space")
    for name, of in (("described", "generated tasks"), ("tuned", "generated tasks")):
        parser.add_argument(f"--{name}", type=positive, help=of)
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(("Joint",), ("random", "de", "zero-shot"), 8, 16, 6, tasks=2)
    asked = {n: v for n in ("described", "tuned") if (v := getattr(options, n))}
    study = replace(study, **asked)
    claim(options.out, study)
    if options.space:
        study = replace(study, spaces=(options.space,))
    found = run(study, options.out, options.workers, options.part)
    words = report(found)
    (options.out / "report.md").write_text(words, encoding="utf-8")
    draw(found, options.out / "generated.png")
    print(words)
    if options.page:
        rewrite(options.page, "tables", words)
        draw(found, options.page.with_suffix(".png"))


if __name__ == "__main__":
    main()
