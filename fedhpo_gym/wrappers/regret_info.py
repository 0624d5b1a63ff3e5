"""Regret beside what a trial says: for whoever watches an agent, not for the agent."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym

from fedhpo_gym.wrappers.checks import check_env


class RegretInfo(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Adds the incumbent's regret to `info`: how far it is from the best that can be reached.

    `info["regret"]` is in the unit of the first objective, and `info["relative_regret"]` in units
    of what a random trial has: see `Truth.regret` and `Truth.relative_regret` of
    `fedhpo_gym.envs.trial.truth`. Observations and rewards stay as they are, but `info` then tells
    who reads it where the optimum lies. No environment has this wrapper unless somebody asks.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment.

        Args:
            env: a trial environment that answers from stored numbers.

        Raises:
            InvalidArgumentError: `env` is of another kind, or nobody knows its optimum.
        """
        check_env(env, "truth", "objectives").get_wrapper_attr("truth")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; see the class."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        truth = self.get_wrapper_attr("truth")
        # Where evaluations are noisy, what the incumbent truly is counts, not what was heard of it.
        value = info.get("truth", info)["incumbent"][self.get_wrapper_attr("objectives")[0].name]
        if info["incumbent"].get("violation", 0.0) > 0.0:
            value = math.nan  # no trial keeps the constraints: nothing is recommended yet
        known = {
            "regret": float(truth.regret(value)),
            "relative_regret": float(truth.relative_regret(value)),
        }
        return observation, reward, terminated, truncated, {**info, **known}
