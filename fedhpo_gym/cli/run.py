"""`fedhpo-gym run`: every agent on every problem with every seed, one record each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedhpo_gym.agents import (
    LEARNED_AGENTS,
    MULTI_FIDELITY_AGENTS,
    agent_class,
    make_agent,
    run_episode,
)
from fedhpo_gym.analysis.environments import make_environment, resolve_id
from fedhpo_gym.analysis.files import read_record, record_path, write_record
from fedhpo_gym.analysis.records import Header, RunRecord, StepRecord
from fedhpo_gym.cli.console import package_version, parse_pairs, say
from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import get_task

FREE = "free"
ROUND = "round"


@dataclass(frozen=True)
class Plan:
    """One run to do: what to make, and who acts in it."""

    id: str
    kwargs: Mapping[str, Any]
    agent: str
    seed: int


def main(options: argparse.Namespace) -> int:
    """Do every run whose complete record is not there yet."""
    plans = make_plans(options)
    done = 0
    with options.progress(total=len(plans), unit="run", disable=None) as bar:
        for plan in plans:
            bar.set_postfix_str(f"{plan.id} {plan.agent} seed {plan.seed}")
            done += do_run(plan, options.out, bar.set_postfix_str)
            bar.update()
    kept = len(plans) - done
    say(f"{done} runs done, {kept} already there, records in {options.out}")
    return 0


def make_plans(options: argparse.Namespace) -> list[Plan]:
    """Check all arguments before the first run, and return the runs in order.

    Raises:
        InvalidArgumentError: an argument is malformed or given twice, or an agent cannot act in an
            environment.
        UnknownNameError: no such environment, agent or fidelity.
        MissingDependencyError: an agent's library is not installed.
    """
    if options.seeds < 1:
        raise InvalidArgumentError(f"`--seeds` must be at least 1, got {options.seeds}")
    ids, agents = dict.fromkeys(map(resolve_id, options.ids)), dict.fromkeys(options.agents)
    pairs = list(product(ids, agents))
    for env_id, agent in pairs:
        _check_agent(agent, env_id)
    return [
        Plan(env_id, kwargs, agent, seed)
        for env_id, agent in pairs
        for kwargs in [environment_arguments(env_id, options, agent)]
        for seed in range(options.seeds)
    ]


def _check_agent(agent: str, env_id: str) -> None:
    """Refuse an agent that cannot act in an environment.

    Raises:
        InvalidArgumentError: see above.
        UnknownNameError: no such agent.
        MissingDependencyError: its library is not installed.
    """
    kind, goes_on = agent_class(agent), env_id.endswith(get_task(env_id).round_id)
    if agent in LEARNED_AGENTS:
        raise InvalidArgumentError(
            f"`--agent` must be one that needs nothing learned, got {agent!r}; use "
            "`fedhpo_gym.agents.make_agent` in Python, which takes a policy."
        )
    if (kind.per_client and not goes_on) or (agent in MULTI_FIDELITY_AGENTS and goes_on):
        wanted = "FedHPO-DAC-*" if kind.per_client else "trial environments, FedHPO-<Model>-*"
        raise InvalidArgumentError(f"`--agent {agent}` must act in {wanted}, got {env_id}")


def do_run(plan: Plan, folder: Path, show: Callable[[str], None]) -> bool:
    """Do one run and write its record, unless a complete one is there.

    Args:
        plan: the run.
        folder: where records go.
        show: shows how far the run is.

    Returns:
        Whether the run was done now.

    Raises:
        DamagedDataError: the record is there, but damaged.
    """
    with closing(make_environment(plan.id, plan.kwargs)) as env:
        _, info = env.reset(seed=plan.seed)
        header = Header(
            package_version=package_version(),
            id=plan.id,
            spec=json.loads(env.spec.to_json()) if env.spec else {},
            agent=plan.agent,
            seed=plan.seed,
            fingerprint=info["fingerprint"],
        )
        path = record_path(folder, header)
        if path.exists():
            read_record(path)
            return False
        options = {}
        if plan.agent in MULTI_FIDELITY_AGENTS:
            options["fidelity"] = _space(env, plan.id)[ROUND]
        agent = make_agent(plan.agent, env.action_space, plan.seed, **options)
        steps = []
        for step in run_episode(env, agent, plan.seed):
            steps.append(
                StepRecord.from_step(
                    step.action, step.reward, step.terminated, step.truncated, step.info
                )
            )
            trials, elapsed = len(steps), steps[-1].elapsed_s
            show(f"{plan.id} {plan.agent} seed {plan.seed}: {trials} trials, {elapsed:.0f} s")
        write_record(path, RunRecord(header, tuple(steps)))
    return True


def environment_arguments(env_id: str, options: argparse.Namespace, agent: str) -> dict[str, Any]:
    """Return the arguments of `gymnasium.make` that the command line and the agent ask for.

    Raises:
        InvalidArgumentError: an argument is malformed or given twice.
        UnknownNameError: no such fidelity.
    """
    kind = agent_class(agent)
    kwargs: dict[str, Any] = {"per_client": True} if kind.per_client else {}
    if options.backend is not None:
        kwargs["backend"] = options.backend
    if options.budget_s is not None:
        kwargs["budget_s"] = options.budget_s
    for name, value in parse_pairs("--set", options.settings):
        if name in kwargs or name in ("fidelity", "backend"):
            raise InvalidArgumentError(f"`{name}` is given twice, the second time by `--set`")
        kwargs[name] = value
    with closing(make_environment(env_id, kwargs)) as env:
        # A record names its backend, so that it replays where there are other tables.
        backend = getattr(env.unwrapped, "backend", None)
        space = _space(env, env_id)
    if backend is not None:
        kwargs["backend"] = getattr(backend, "name", backend)
    free = (f"{ROUND}={FREE}",) if agent in MULTI_FIDELITY_AGENTS else ()
    if fidelity := pinned_fidelity(space, (*free, *options.fidelity)):
        kwargs["fidelity"] = fidelity
    if agent in MULTI_FIDELITY_AGENTS and {*space.names} - {*fidelity} != {ROUND}:
        raise InvalidArgumentError(
            f"`--fidelity` must leave nothing free but {ROUND!r} for {agent!r}, got {fidelity}"
        )
    return kwargs


def _space(env: Any, env_id: str) -> SearchSpace:
    """Return the fidelities that an environment answers."""
    space: SearchSpace = getattr(env.unwrapped, "fidelity_space", get_task(env_id).fidelity_space)
    return space


def pinned_fidelity(space: SearchSpace, words: Sequence[str]) -> dict[str, Any]:
    """Return the fidelity that every trial of a run has: full, unless asked otherwise.

    The black-box protocol of FedHPO-Bench (Wang et al., 2022) evaluates at full fidelity only. Full
    is what the backend can answer: a surrogate of a sample may know fewer rounds than the task has.

    Raises:
        InvalidArgumentError: a word is not of the form `name=value`.
        UnknownNameError: no such fidelity.
    """
    pinned: dict[str, Any] = {d.name: d.high for d in space.dimensions}
    for name, value in parse_pairs("--fidelity", words):
        if name not in space.names:
            raise unknown_name("fidelity", name, space.names)
        pinned[name] = value
    return {name: value for name, value in pinned.items() if value != FREE}
