"""Regret beside what a trial says: for whoever watches an agent, not for the agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.wrappers.checks import check_env


class RegretInfo(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Adds the incumbent's regret to `info`: how far it is from the best that can be reached.

    It is the regret of docs/regret.md: that of the incumbent's configuration at full fidelity.
    `info["regret"]` is in the unit of the first objective; it is left out while no trial keeps the
    constraints. `info["relative_regret"]` is in units of what a random configuration has.

    Observations and rewards stay as they are, but `info` then tells who reads it where the optimum
    lies. No environment has this wrapper unless somebody asks.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment.

        Args:
            env: a trial environment that answers from stored numbers.

        Raises:
            InvalidArgumentError: `env` is of another kind, or nobody knows its optimum.
        """
        check_env(env, "full_truth").get_wrapper_attr("full_truth")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; see the class."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        truth = self.get_wrapper_attr("full_truth")
        regret, relative = truth.regret_at([info["incumbent"]["configuration"]])
        known = {"relative_regret": float(relative[0])}
        if np.isfinite(regret[0]):  # a record holds finite numbers only
            known["regret"] = float(regret[0])
        return observation, reward, terminated, truncated, {**info, **known}
