"""The runs of a study: every agent on every problem with every seed.

`fedhpo-gym run` and `compare` call `make_plans`, which checks all arguments before the first run
begins. A problem with many tasks is split into one problem per task. The fidelity of an agent's
trials is fixed at full, unless the agent chooses it or the request frees it (`FREE`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import gymnasium as gym

from fedhpo_gym.agents import agent_class, read_problem
from fedhpo_gym.agents.base import WHERE
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.records.files import record_key
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.studies.environments import (
    MANY_TASK_KINDS,
    kind_of_id,
    make_environment,
    resolve_id,
    spec_of,
)
from fedhpo_gym.tasks import get_task

FREE = "free"
STORED_BACKENDS = ("tabular", "surrogate")
"""Backends whose fingerprint is known before an episode begins, at no cost."""


@dataclass(frozen=True)
class Request:
    """A request for runs, as `compare` or the command line takes it.

    Attributes:
        agents: names of agents, or `module:Class` of one's own.
        seeds: runs per agent and environment.
        backend: where numbers come from; None for the environment's choice.
        budget_s: simulated seconds of a run; None for the environment's.
        fidelity: fidelity of every trial, by name; full where it is left out, `FREE` leaves it to
            the agent.
        arguments: further arguments of `gymnasium.make`.
        workers: simulated workers that run trials side by side.
        shared_start: configurations that every agent tries first, the same under a seed.
    """

    ids: Sequence[str]
    agents: Sequence[str]
    seeds: int = 5
    backend: str | None = None
    budget_s: float | None = None
    fidelity: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    shared_start: int = 0


@dataclass(frozen=True)
class RunPlan:
    """One run to do: the environment, the agent and the seed.

    Attributes:
        kwargs: arguments of `gymnasium.make`.
        seed: of the agent and of `reset`.
        key: end of the name of its record; None where only a reset of the environment returns the
            fingerprint that it depends on.
    """

    id: str
    kwargs: Mapping[str, Any]
    agent: str
    seed: int
    workers: int = 1
    key: str | None = None
    shared_start: int = 0

    def __str__(self) -> str:
        return f"{problem_name(self.id, self.kwargs)} {self.agent} seed {self.seed}"


def problem_name(env_id: str, kwargs: Mapping[str, Any]) -> str:
    """Return the name of a problem of a study: its id, and its task where an id has many."""
    # A log may have ids that are unknown here.
    has_many_tasks = env_id in gym.registry and kind_of_id(env_id) in MANY_TASK_KINDS
    return f"{env_id} {kwargs.get('instances')}" if has_many_tasks else env_id


def make_plans(request: Request) -> list[RunPlan]:
    """Check all arguments before the first run, and return the runs in order."""
    limits = ("seeds", request.seeds, 1), ("simulated-workers", request.workers, 1)
    for name, value, least in (*limits, ("shared-start", request.shared_start, 0)):
        if value < least:
            raise InvalidArgumentError(f"`--{name}` must be at least {least}, got {value}")
    if len(set(request.agents)) < len(request.agents):
        raise InvalidArgumentError(
            f"`agents` must name each agent once, got {', '.join(request.agents)}"
        )
    for name in [name for name in ("fidelity", "backend") if name in request.arguments]:
        raise InvalidArgumentError(f"`{name}` must be given by `--{name}`, not by `--set`")
    pairs = list(product(dict.fromkeys(map(resolve_id, request.ids)), request.agents))
    for env_id, agent in pairs:
        _check_agent(agent, env_id)
        _check_trials(request, agent, env_id)
    requests_of = {env_id: _split_by_task(env_id, request) for env_id, _ in pairs}
    return [
        RunPlan(env_id, kwargs, agent, seed, request.workers, key, request.shared_start)
        for env_id, agent in pairs
        for own_request in requests_of[env_id]
        for kwargs in [environment_arguments(env_id, own_request, agent)]
        for key in [_find_record_key(env_id, kwargs, request)]
        for seed in range(own_request.seeds)
    ]


def _split_by_task(env_id: str, request: Request) -> list[Request]:
    """Return the requests for an id: one per task where it has many, since each is a problem."""
    kind = kind_of_id(env_id)
    if kind not in MANY_TASK_KINDS:
        return [request]
    # Agents are judged on meta-test, and all of them act in coordinates. Of generated tasks a seed
    # is another.
    defaults: dict[str, Any] = {"instances": "test", "actions": "coordinates"}
    seeds, fidelity = request.seeds, request.fidelity
    if kind == "generated":
        defaults = {"instances": [*range(seeds)], "choose_fidelity": True}
        seeds = seeds if "instances" in request.arguments else 1
        if request.arguments.get("choose_fidelity"):
            fidelity = {**dict.fromkeys(("round", "client_sample_rate"), FREE), **fidelity}
    given = {**defaults, **request.arguments}
    if kind != "generated" and fidelity:
        given["fidelity"], fidelity = dict(fidelity), {}
    with closing(make_environment(env_id, given)) as env:
        tasks: Sequence[Any] = env.get_wrapper_attr("instances")
    arguments = ({**given, "instances": instance} for instance in tasks)
    return [
        replace(request, arguments=task_arguments, seeds=seeds, fidelity=fidelity)
        for task_arguments in arguments
    ]


def _find_record_key(env_id: str, kwargs: Mapping[str, Any], request: Request) -> str | None:
    with closing(make_environment(env_id, kwargs)) as env:
        backend: Any = getattr(env.unwrapped, "backend", None)
        if getattr(backend, "name", None) not in STORED_BACKENDS:
            return None
        numbers = request.workers, request.shared_start
        return record_key(spec_of(env), backend.fingerprint, *numbers)


def _check_agent(agent: str, env_id: str) -> None:
    """Refuse an agent that cannot act in an environment."""
    kind = agent_class(agent)
    if kind.learned is not None and not kind.stored:
        raise InvalidArgumentError(
            f"`--agent` must be one that needs nothing learned, got {agent!r}; use "
            f"`fedhpo_gym.agents.make_agent` in Python, which takes a {kind.learned}."
        )
    process = "round" if kind_of_id(env_id) == "round" else "trial"
    if process not in kind.acts_on:
        places = " or ".join(WHERE[process_kind] for process_kind in kind.acts_on)
        raise InvalidArgumentError(f"`--agent {agent}` must act in {places}; got {env_id}")


def _check_trials(request: Request, agent: str, env_id: str) -> None:
    """Refuse options of trials in round environments, and a start that the agent cannot share."""
    is_used = {"simulated-workers": request.workers > 1, "shared-start": request.shared_start > 0}
    options = [name for name, used in is_used.items() if used]
    kind = kind_of_id(env_id)
    if request.workers > 1 and kind in MANY_TASK_KINDS:
        raise InvalidArgumentError(
            f"`--simulated-workers` must be 1 for {env_id}, whose trials follow each other, got "
            f"{request.workers}"
        )
    if options and kind == "round":
        raise InvalidArgumentError(
            f"`--{options[0]}` is for trials, but the rounds of a course follow each other in "
            f"{env_id}; use its id without DAC"
        )
    if request.shared_start and not agent_class(agent).starts:
        raise InvalidArgumentError(
            f"`--shared-start` must be 0 for {agent}, which begins with nothing that it is given; "
            "leave the agent out"
        )


def environment_arguments(env_id: str, request: Request, agent: str) -> dict[str, Any]:
    """Return the arguments of `gymnasium.make` that the command line and the agent ask for."""
    kind = agent_class(agent)
    required = {"per_client": kind.per_client, "report_moves": kind.report_moves}
    kwargs: dict[str, Any] = {name: True for name, is_required in required.items() if is_required}
    options = {"backend": request.backend, "budget_s": request.budget_s}
    kwargs |= {name: value for name, value in options.items() if value is not None}
    for name, value in request.arguments.items():
        if name in kwargs:
            first = "the agent" if name in required else "an option of its own"
            raise InvalidArgumentError(
                f"`--set {name}` must be left out: {first} says {kwargs[name]!r} already"
            )
        kwargs[name] = value
    with closing(make_environment(env_id, kwargs)) as env:
        # A record names its backend, so that it can be replayed where other tables are installed.
        backend = getattr(env.unwrapped, "backend", None)
        space = getattr(env.unwrapped, "fidelity_space", None)
        if space is None:
            space = get_task(env_id).fidelity_space
        problem = read_problem(env, 0)
        kind.check_rewards(problem)
        fidelity = _fixed_fidelity(agent, space, request.fidelity)
        constant = getattr(env.unwrapped, "unmoved_objectives", lambda _: ())(fidelity)
        objectives = [objective.name for objective in getattr(env.unwrapped, "objectives", ())]
    if objectives and "val_loss" not in objectives:
        raise InvalidArgumentError(
            "`objectives` must hold 'val_loss', by which records are compared, got "
            f"{objectives}; add it to them"
        )
    if backend is not None:
        kwargs["backend"] = getattr(backend, "name", backend)
    if fidelity:
        kwargs["fidelity"] = fidelity
    if {*space.names} <= {*fidelity}:
        kwargs.pop("choose_fidelity", None)  # nothing is left to choose
    if constant and len(problem.objectives) > 1:
        varying = [name for name in problem.objectives if name not in constant]
        if "objectives" in kwargs or len(varying) < 2:
            raise InvalidArgumentError(
                f"`objectives` must vary between configurations, but {', '.join(constant)} of "
                f"{env_id} cannot where every trial has {fidelity}; leave a fidelity to the "
                "agents, for example `--fidelity round=free`, or name others: "
                f"`--set 'objectives={json.dumps(['val_loss', 'val_f1'])}'`"
            )
        kwargs["objectives"] = varying
    return kwargs


def _fixed_fidelity(agent: str, space: SearchSpace, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fidelities that are fixed for all trials: all but those the agent chooses."""
    chosen_by_agent = agent_class(agent).fidelity
    if chosen_by_agent is not None and chosen_by_agent not in space.names:
        raise InvalidArgumentError(
            f"`--agent {agent}` must act where trials have a {chosen_by_agent!r} to choose, but "
            "here all have the same; leave the agent out"
        )
    if chosen_by_agent is not None and requested.get(chosen_by_agent, FREE) != FREE:
        raise InvalidArgumentError(
            f"`--fidelity` must leave {chosen_by_agent!r} to {agent!r}, which chooses it, got "
            f"{chosen_by_agent}={requested[chosen_by_agent]}"
        )
    fixed: dict[str, Any] = {d.name: d.high for d in space.dimensions}
    for name, value in {
        **requested,
        **({} if chosen_by_agent is None else {chosen_by_agent: FREE}),
    }.items():
        require_known("fidelity", name, space.names)
        fixed[name] = value
    fixed = {name: value for name, value in fixed.items() if value != FREE}
    if chosen_by_agent is not None and {*space.names} - {*fixed} != {chosen_by_agent}:
        raise InvalidArgumentError(
            f"`--fidelity` must leave nothing free but {chosen_by_agent!r} for {agent!r}, got "
            f"{sorted({*space.names} - {*fixed})}"
        )
    return fixed
