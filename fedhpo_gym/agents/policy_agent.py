"""A learned policy as an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.policy import Policy, load_policy
from fedhpo_gym.errors import InvalidArgumentError


class PolicyAgent(Agent):
    """Does what a policy finds most likely, and learns nothing more.

    Attributes:
        policy: what decides.

    Raises:
        InvalidArgumentError: there is no policy, or it acts in another space.
        MissingDataError: there is no policy in the folder.
        DamagedDataError: a file of the policy is damaged.
    """

    def __init__(
        self, action_space: gym.Space[Any], seed: int, policy: Policy | Path | str | None = None
    ) -> None:
        """Take a policy, or the folder it was saved in; nothing is random: `seed` is unused."""
        super().__init__(action_space, seed)
        if policy is None:
            raise InvalidArgumentError(
                "`policy` must be a policy or the folder of a saved one, got None; train one with "
                "`fedhpo_gym.agents.sb3.train`."
            )
        self.policy = policy if isinstance(policy, Policy) else load_policy(Path(policy))
        if self.policy.action_space != self.action_space:
            raise InvalidArgumentError(
                f"`policy` must act in {self.action_space}, got one for "
                f"{self.policy.action_space}; train one in this environment."
            )

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        return self.policy.act(observation)
