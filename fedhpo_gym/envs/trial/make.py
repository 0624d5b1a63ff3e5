"""Ids: what `gym.make` builds, with the default wrappers composed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym

from fedhpo_gym.backends import default_backend, make_backend
from fedhpo_gym.envs.trial.env import DEFAULT_OBJECTIVES, TrialEnv
from fedhpo_gym.errors import InvalidArgumentError, suggest
from fedhpo_gym.space import Value
from fedhpo_gym.systems import SystemModel
from fedhpo_gym.tasks import get_task
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty


def make_trial_env(**arguments: Any) -> gym.Env[Any, Any]:
    """Build a trial environment; the entry point of every `FedHPO-*` id.

    See `build_trial_env` for the arguments.

    Raises:
        InvalidArgumentError: an argument is unknown or out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the backend has nothing to answer from; says what to do.
    """
    known = inspect.signature(build_trial_env).parameters
    for name in arguments:
        if name not in known:
            raise InvalidArgumentError(f"unknown argument {name!r}.{suggest(name, known)}")
    return build_trial_env(**arguments)


def build_trial_env(
    *,
    task: str,
    backend: str | None = None,
    algorithm: str = "fedavg",
    alpha: float = 0.5,
    preprocessing: str = "label_encoded",
    settings: Mapping[str, float] | None = None,
    seed: int | None = None,
    device: str | None = None,
    system: Mapping[str, Any] | None = None,
    objectives: Sequence[str] = DEFAULT_OBJECTIVES,
    constraints: Mapping[str, Any] | None = None,
    fidelity: Mapping[str, Value] | None = None,
    grid: bool = False,
    freeze_thaw: bool = False,
    budget_s: float | None = None,
    budget_rounds: int | None = None,
    budget_trials: int | None = None,
    vector_reward: bool = False,
    render_mode: str | None = None,
) -> gym.Env[Any, Any]:
    """Build a trial environment with its budget and, unless `vector_reward`, a scalar reward.

    Args:
        task: name in the catalogue.
        backend: "tabular", "surrogate" or "raw"; None for the first of the former two that has
            numbers.
        algorithm: name of the FL algorithm.
        alpha: concentration of the LDA partition.
        preprocessing: "label_encoded" (the paper's) or "standardized".
        settings: hyperparameters fixed that are not in the search space, such as `epsilon`
            of NbAFL.
        seed: answer for one seed; None averages over the task's seeds.
        device: torch device of the raw backend.
        system: parameters of the system model that differ from the task's.
        objectives: names of the objectives; the first ranks trials.
        constraints: soft constraints of `ScalarizePenalty`.
        fidelity: fidelity dimensions fixed.
        grid: offer only the grid of the task's tables.
        freeze_thaw: more rounds of a configuration already tried cost only the difference.
        budget_s: simulated seconds; the task's budget if no budget is given.
        budget_rounds: communication rounds.
        budget_trials: number of trials.
        vector_reward: leave the reward a vector.
        render_mode: "human", "rgb_array" or None.
    """
    variant = get_task(task).variant(algorithm=algorithm, alpha=alpha, preprocessing=preprocessing)
    if settings:
        variant = variant.fix(settings)
    if system:
        variant = variant.variant(system=variant_system(variant.system, system))
    backend = default_backend(variant) if backend is None else backend
    if device is not None and backend != "raw":
        raise InvalidArgumentError(f'`device` is for backend="raw" only, got backend={backend!r}')
    options = {} if device is None else {"device": device}
    env: gym.Env[Any, Any] = TrialEnv(
        variant,
        make_backend(backend, variant, seed=seed, **options),
        objectives=objectives,
        fidelity=fidelity,
        grid=grid,
        freeze_thaw=freeze_thaw,
        render_mode=render_mode,
    )
    if budget_s is None and budget_rounds is None and budget_trials is None:
        budget_s = variant.budget_s
    env = BudgetTermination(
        env, budget_s=budget_s, budget_rounds=budget_rounds, budget_trials=budget_trials
    )
    if vector_reward:
        if constraints:
            raise InvalidArgumentError("`constraints` need a scalar reward; use the id without MO-")
        return env
    return ScalarizePenalty(env, constraints=constraints)


def variant_system(base: SystemModel, changes: Mapping[str, Any]) -> SystemModel:
    """Return a system model with some parameters replaced.

    Raises:
        InvalidArgumentError: a parameter is unknown or out of its range.
    """
    known = inspect.signature(SystemModel).parameters
    for name in changes:
        if name not in known:
            raise InvalidArgumentError(f"unknown system parameter {name!r}.{suggest(name, known)}")
    return replace(base, **changes)
