"""The entry point of the ids of trial environments, with the default wrappers composed."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.arguments import check_own, from_names, taking
from fedhpo_gym.envs.trial.arguments import TrialArguments
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.ledger import spending
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.objectives.spending import COST_NAMES
from fedhpo_gym.wrappers import BudgetTermination, IncumbentReward, ScalarizePenalty

COSTS: Final = {"flops": "parameter_epochs", **{name: name for name in COST_NAMES}}
"""What of a trial's costs decides an objective."""


def _refuse_constants(setup: TrialSetup) -> None:
    """Refuse objectives of costs that are the same whatever an action asks for.

    Raises:
        InvalidArgumentError: says which, and why.
    """
    names = [name for name in setup.objective_names if name in COSTS]
    if len(setup.objective_names) < 2 or not names:
        return
    space, rng = setup.search_space, stream(0, "constant_objectives")
    columns = setup.columns(rng.uniform(-1.0, 1.0, (256, len(space))))
    costs = spending(setup.task, columns).costs
    for name in names:
        each = np.asarray(costs[COSTS[name]])
        if each.ndim == 0 or np.ptp(each) == 0:
            raise InvalidArgumentError(
                f"`objectives` must be able to vary, but {name!r} is the same for all actions "
                f"where `fidelity` is {shown(dict(setup.fixed))} and `system['compute']` is "
                f"{setup.task.system.compute!r}; leave the fidelity free, choose "
                "system={'compute': 'epochs'}, or leave the objective out"
            )


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
        leave_out=asked.objectives is None,
        fidelity=asked.fidelity,
        grid=asked.grid,
        freeze_thaw=asked.freeze_thaw,
        reward_transform=asked.reward_transform,
        instances=instances,
        noise=asked.evaluation_noise,
        constraints=asked.constraints,
        render_mode=render_mode,
    )
    if asked.objectives is not None:
        _refuse_constants(env.unwrapped.setup)  # type: ignore[attr-defined]
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
