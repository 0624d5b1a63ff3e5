"""Whether policies that learned to tune beat a list of configurations, over simulated time.

    python docs/studies/learned_study.py --out DIR

Tasks of FedHPO-B that no policy has seen, from pools and from surrogates, 25 trials, no initial
design. Results are stored numbers, so nothing is downloaded. Finished pieces are kept, and those of
agents that learned are named after their networks: start it again after an interruption. DIR holds
one study, and says in study.json which. The report is DIR/report.md.
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
from pieces import claim, pieces, read
from transfer_report import ratios
from transfer_study import MODES, tasks_of

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.learned_network import STORED
from fedhpo_gym.analysis.transfer import MethodRuns, align_runs
from fedhpo_gym.core.files import write_text
from fedhpo_gym.studies.run import agent_seed
from fedhpo_gym.tasks.meta import META_SPLITS
from studies import positive, rewrite, study_parser, table

THRIFTY = "thrifty_list:ThriftyList"
LEARNED = {name: name for name in ("learned-lstm", "learned-transformer")}
NETWORKS = {**LEARNED, THRIFTY: "learned-transformer"}
"""Agents that need a network -> of which agent."""
AGENTS = ("random", "gp", "fsbo", "zero-shot", THRIFTY, *LEARNED)
REFERENCE = "zero-shot"
MEASURES = ("over time", "at the end")
NAMES = {"discrete": "pools", "continuous": "surrogates"}
Runs = Sequence[Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Study:
    """Who tunes what, and for how long."""

    modes: Sequence[str] = MODES
    spaces: Sequence[str] = ("LR", "Joint")
    agents: Sequence[str] = AGENTS
    trials: int = 25
    seeds: int = 3
    tasks: int | None = None  # of a space, all by default
    split: str = "test"


def tune(study: Study, mode: str, space: str, task: str, agent: str, policies: str | None) -> Runs:
    """Return seconds at the end of each trial, and normalised regret after it, by seed."""
    how = {"continuous": True} if mode == "continuous" else {"actions": "coordinates"}
    given: dict[str, Any] = {}
    if policies and agent in NETWORKS:
        given["policy"] = str(network_of(agent, space, policies))
    found = []
    with gym.make(
        f"FedHPO-B-{space}-v1", instances=task, trials=study.trials, disable_env_checker=True, **how
    ) as env:
        for seed in range(study.seeds):
            env.reset(seed=0)
            made = make_agent(agent, env, agent_seed(f"{space} {task}", seed), **given)
            steps = list(run_episode(env, made, seed=0))
            found.append(
                {
                    "seconds": [step.info["elapsed_s"] for step in steps],
                    "regret": [step.info["normalised_regret"] for step in steps],
                }
            )
    return found


def network_of(agent: str, space: str, policies: str | None) -> Path:
    """Return the card of an agent's network."""
    return Path(policies or STORED) / f"{NETWORKS[agent]}-{space}.json"


def named(agent: str, space: str, policies: str | None) -> str:
    """Return how pieces name an agent and the network that it has."""
    if agent not in NETWORKS:
        return agent
    card = read(network_of(agent, space, policies))
    return f"{agent.partition(':')[0]}-{card['card_sha256'][:8]}"


def over_time(seconds: Sequence[float], regret: Sequence[float], budget: float) -> float:
    """Return the mean over [0, budget] of the regret of what is known, 1 before a trial ends."""
    ends = np.minimum([0.0, *seconds, budget], budget)
    return float(np.diff(ends) @ [1.0, *regret] / budget)


def run(study: Study, out: Path, processes: int, policies: str | None) -> dict[str, dict[str, Any]]:
    """Do what is not there yet; return 1 less both measures, as HPO-B has them, by mode."""
    cells = {
        out / f"{mode}-{space}-{task}-{name}.json": (mode, space, task, agent)
        for space, agent in product(study.spaces, study.agents)
        for name in [named(agent, space, policies)]
        for mode in study.modes
        for task in tasks_of(study, mode, space)  # type: ignore[arg-type]
    }
    jobs = {path: partial(tune, study, *cell, policies) for path, cell in cells.items()}
    done = pieces(jobs, processes)
    found: dict[str, dict[str, Any]] = {mode: {} for mode in study.modes}
    for path, (mode, space, task, agent) in cells.items():
        drawn: Runs = done[out / f"{mode}-{space}-{task}-random.json"]
        budget = float(np.mean([one["seconds"][-1] for one in drawn]))
        name = agent.partition(":")[0]
        found[mode].setdefault(name, {}).setdefault(space, {})[task] = {
            f"seed{i}": [1.0 - over_time(**one, budget=budget), 1.0 - one["regret"][-1]]
            for i, one in enumerate(done[path])
        }
    return found


def distinct_runs(runs: MethodRuns) -> dict[str, int]:
    """Return how many runs of each method differ: one that draws nothing repeats itself."""
    tasks = [run[:2] for run in runs.runs]
    regret = zip(runs.methods, runs.regret.swapaxes(0, 1).tolist(), strict=True)
    return {name: len({*zip(tasks, map(tuple, one), strict=True)}) for name, one in regret}


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return all tables as Markdown."""
    lines = []
    for mode, of in found.items():
        runs = align_runs(of, 1)
        spaces = list(dict.fromkeys(space for space, _, _ in runs.runs))
        own = np.array([space for space, _, _ in runs.runs])
        lines.append(f"**{NAMES[mode].title()}**: {len(runs.runs)} runs of each agent\n")
        distinct = distinct_runs(runs)
        lines.append(table(["agent", *distinct], [["distinct runs", *map(str, distinct.values())]]))
        for index, measure in enumerate(MEASURES):
            parts = [runs, *(_only(runs, own == space) for space in spaces)]
            shares = [ratios(part, index, REFERENCE) for part in parts]
            rows = [
                [
                    name,
                    *(f"{part.mean(part.regret, 'search spaces')[i, index]:.4f}" for part in parts),
                    *("{:.2f} [{:.2f}, {:.2f}]".format(*share[name][:3]) for share in shares),
                ]
                for i, name in enumerate(runs.methods)
            ]
            words = ["all", *spaces]
            heads = [f"regret {measure}", *words, *(f"share: {word}" for word in words)]
            lines.append(table(heads, rows))
        tasks = dict.fromkeys(run[:2] for run in runs.runs)
        rows = []
        for place in tasks:
            mean = runs.regret[[run[:2] == place for run in runs.runs]].mean(axis=0)
            rows.append([*place, *(f"{time:.3f}, {end:.3f}" for time, end in mean)])
        lines.append(table(["space", "regret over time, at the end", *runs.methods], rows))
    return "\n".join(lines)


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one table: both measures, by search space and mode."""
    columns: dict[str, list[str]] = {}
    for mode, of in found.items():
        runs = align_runs(of, 1)
        for space in dict.fromkeys(space for space, _, _ in runs.runs):
            own = runs.regret[[one[0] == space for one in runs.runs]].mean(axis=0)
            columns[f"{space}, {NAMES[mode]}"] = [f"{time:.3f}, {end:.3f}" for time, end in own]
            names = runs.methods
    return table(["agent", *columns], [*zip(names, *columns.values(), strict=True)])


def _only(runs: MethodRuns, kept: Any) -> MethodRuns:
    names = tuple(run for run, is_kept in zip(runs.runs, kept, strict=True) if is_kept)
    return MethodRuns(runs.methods, names, runs.regret[kept])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--split", choices=META_SPLITS[1:], default="test", help="of tasks")
    parser.add_argument("--agents", help="names, separated by commas (default: all)")
    parser.add_argument("--policies", help="folder of train_learned.py (default: the stored ones)")
    parser.add_argument("--seeds", type=positive, help="of a task (3)")
    parser.add_argument("--page", type=Path, help="whose tables of this split are replaced")
    options = parser.parse_args(arguments)
    study = replace(Study(), split=options.split)
    if options.quick:
        study = replace(study, spaces=("LR",), trials=6, seeds=2, tasks=2)
        study = replace(study, agents=("random", "zero-shot", THRIFTY, "learned-transformer"))
    if options.agents:  # these two say what a budget is, and what shares are of
        asked = ("random", REFERENCE, *options.agents.split(","))
        study = replace(study, agents=tuple(dict.fromkeys(asked)))
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, replace(study, agents=AGENTS))
    found = run(study, options.out, options.workers, options.policies)
    words = report(found)
    write_text(options.out / "report.md", words)
    print(words)
    if options.page:
        rewrite(options.page, options.split, words if options.split == "test" else summary(found))


if __name__ == "__main__":
    main()
