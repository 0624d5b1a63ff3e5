"""How noise of evaluation misleads optimizers: the questions of Kuo et al. (2023).

    python docs/studies/noise_study.py --out DIR

Random search, TPE, Hyperband and BOHB tune problems with many clients, and hear of each trial what
few clients say, clients that do well more often than others, or private means. What counts is the
true error of the configuration that they choose. Proxy tuning chooses on another problem, whose
evaluations are exact. Every answer comes from a stored surrogate, so nothing is downloaded.
Finished pieces are kept: start it again after an interruption. DIR holds one study, and says in
study.json which. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from noise_report import draw, report
from pieces import claim, pieces

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import Agent, agent_class, make_agent, run_episode
from fedhpo_gym.agents.base import Step
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import get_task
from studies import positive, study_parser

AGENTS = ("random", "optuna-tpe", "hyperband", "bohb")
CONDITIONS: Mapping[str, Mapping[str, float]] = {
    "all clients": {},
    "10 %": {"clients": 0.1},
    "1 %": {"clients": 0.01},
    "one client": {"clients": 1e-6},
    "10 %, b = 3": {"clients": 0.1, "bias": 3.0},
    "1 %, ε = 100": {"clients": 0.01, "epsilon": 100.0},
    "1 %, ε = 10": {"clients": 0.01, "epsilon": 10.0},
    "1 %, ε = 1": {"clients": 0.01, "epsilon": 1.0},
}
PROBLEMS = ("LR-Twitter", "LR-Synthetic", "MF-MadeRatings")


@dataclass(frozen=True)
class Study:
    """What is tuned, how often, and with how much training: that of so many full courses."""

    problems: Sequence[str] = PROBLEMS
    agents: Sequence[str] = AGENTS
    conditions: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: dict(CONDITIONS))
    seeds: int = 10
    courses: int = 16


def environment(study: Study, problem: str, agent: str, **arguments: Any) -> gym.Env[Any, Any]:
    """Make a problem for an agent: one federation, and full fidelity unless the agent chooses."""
    name = get_task(problem).id
    with gym.make(name, disable_env_checker=True) as plain:
        fidelities = plain.get_wrapper_attr("fidelity_space")
    free = agent_class(agent).fidelity
    return gym.make(
        name,
        disable_env_checker=True,
        backend="surrogate",
        seed=1,
        objectives=["val_error"],
        fidelity={one.name: one.high for one in fidelities.dimensions if one.name != free},
        budget_rounds=study.courses * fidelities["round"].high,
        **arguments,
    )


def evaluations(agent: Agent, study: Study, most: int) -> int:
    """Return how many trials an agent makes of the budget; no score changes that."""
    if agent.fidelity is None:
        return study.courses
    spent = number = 0
    while spent < study.courses * most:
        action = agent.ask({})
        spent += int(agent.problem.fidelities.dimensions[0].decode(float(action[-1])))
        agent.tell(Step(action, 0.0, info={"score": 0.0}))
        number += 1
    return number


def tune(study: Study, problem: str, agent: str, condition: str) -> list[float]:
    """Return the true errors of what an agent chooses, a seed each.

    It chooses the lowest error that it heard of at the highest fidelity. All seeds run side by
    side: an agent makes as many trials whatever it hears.
    """
    noise = dict(study.conditions[condition])
    with environment(study, problem, agent) as env:
        agents = [make_agent(agent, env, seed) for seed in range(study.seeds)]
        most = int(env.get_wrapper_attr("fidelity_space")["round"].high)
        number = evaluations(make_agent(agent, env, 0), study, most)
        arguments = dict(env.spec.kwargs)  # type: ignore[union-attr]
    if "epsilon" in noise:
        noise["evaluations"] = number
    envs = gym.make_vec(
        get_task(problem).id,
        study.seeds,
        vectorization_mode="vector_entry_point",
        info_keys=["fidelity"],
        noise=noise,
        **{name: value for name, value in arguments.items() if name != "task"},
    )
    envs.reset(seed=0)
    rounds, heard, true = [], [], []
    for _ in range(number):
        actions = [one.ask({}) for one in agents]
        *_, info = envs.step(np.array(actions))
        for one, action, score in zip(agents, actions, info["score"].tolist(), strict=True):
            one.tell(Step(action, score, info={"score": score}))
        rounds.append(info["fidelity"]["round"])
        heard.append(info["objectives"]["val_error"])
        true.append(info["truth"]["objectives"]["val_error"])
    full = np.array(rounds) == np.max(rounds)
    chosen = np.argmin(np.where(full, heard, np.inf), axis=0)
    found: list[float] = np.array(true)[chosen, np.arange(study.seeds)].tolist()
    return found


def carry_over(configuration: Mapping[str, Any], space: SearchSpace) -> dict[str, Any]:
    """Return a configuration of another problem as one of a space.

    Values beyond a range are those of its end; what the other problem does not have is in the
    middle.
    """
    middle = space.decode(np.zeros(len(space), np.float32))
    found = {}
    for one in space.dimensions:
        value = float(np.clip(configuration.get(one.name, middle[one.name]), one.low, one.high))
        if one.values is not None:
            found[one.name] = min(one.values, key=lambda legal, near=value: abs(legal - near))
        else:
            found[one.name] = round(value) if one.kind == "int" else value
    return found


def proxy(study: Study, source: str, target: str) -> list[float]:
    """Return the true errors on one problem of what random search chooses on another, unnoised."""
    found = []
    with environment(study, source, "random") as env, environment(study, target, "random") as goal:
        space = goal.get_wrapper_attr("search_space")
        for seed in range(study.seeds):
            *_, last = run_episode(env, make_agent("random", env, seed), seed)
            configuration = carry_over(last.info["incumbent"]["configuration"], space)
            goal.reset(seed=seed)
            *_, info = goal.step(space.encode(configuration).astype(np.float32))
            found.append(info["objectives"]["val_error"])
    return found


def run(study: Study, out: Path, workers: int) -> dict[str, dict[tuple[str, ...], list[float]]]:
    """Do what is not there yet; return errors by problem, agent and condition, and by proxies."""
    tuned = product(study.problems, study.agents, study.conditions)
    cells = {
        out / f"tune-{problem}-{agent}-{number}.json": (problem, agent, condition)
        for number, (problem, agent, condition) in enumerate(tuned)
    }
    pairs = [(a, b) for a, b in product(study.problems, repeat=2) if a != b]
    carried = {out / f"proxy-{source}-{target}.json": (source, target) for source, target in pairs}
    jobs = {
        **{path: partial(tune, study, *cell) for path, cell in cells.items()},
        **{path: partial(proxy, study, *pair) for path, pair in carried.items()},
    }
    done = pieces(jobs, workers)
    return {
        "tuned": {cell: done[path] for path, cell in cells.items()},
        "proxies": {pair: done[path] for path, pair in carried.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="runs per cell (default: 10)")
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        kept = {name: CONDITIONS[name] for name in ("all clients", "1 %", "1 %, ε = 100")}
        two = ("MF-MadeRatings", "LR-Synthetic")
        study = Study(two, ("random", "hyperband"), kept, seeds=2, courses=2)
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, study)
    found = run(study, options.out, options.workers)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    draw(study, found["tuned"], options.out / "noise.png")
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
