"""The entry point of the ids of trial environments, with the default wrappers composed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fedhpo_gym.envs.arguments import check_own, from_names, taking
from fedhpo_gym.envs.trial.arguments import TrialArguments
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.wrappers import BudgetTermination, IncumbentReward, ScalarizePenalty


@taking(TrialArguments)
def make_trial_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
    """Build a trial environment with its budget and, unless `vector_reward`, a scalar reward.

    Args:
        render_mode: "human", "rgb_array" or None.
        arguments: see `TrialArguments`.

    Raises:
        InvalidArgumentError: an argument is unknown or out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the backend has nothing to answer from; says what to do.
    """
    check_own(make_trial_env, {"render_mode": render_mode})
    asked = from_names(TrialArguments, arguments, ("render_mode",))
    instances = asked.open_instances()
    backend = instances[0] if instances else asked.open_backend()
    env: gym.Env[Any, Any] = TrialEnv(
        backend.task,
        backend,
        objectives=asked.chosen_objectives,
        fidelity=asked.fidelity,
        grid=asked.grid,
        freeze_thaw=asked.freeze_thaw,
        reward_transform=asked.reward_transform,
        instances=instances,
        noise=asked.evaluation_noise,
        constraints=asked.constraints,
        render_mode=render_mode,
    )
    env = BudgetTermination(env, **asked.budgets)  # type: ignore[arg-type]
    if asked.vector_reward:
        return env
    env = ScalarizePenalty(env, constraints=asked.constraints)
    if asked.reward_kind == "score":
        return env
    return IncumbentReward(
        env,
        kind=asked.reward_kind,
        discount=asked.reward_discount,
        per_cost=asked.reward_per_cost,
        budget_s=asked.budget_s,
    )
