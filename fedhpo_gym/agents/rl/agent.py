"""A learned policy as an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.rl.policy import load_policy
from fedhpo_gym.errors import InvalidArgumentError


@runtime_checkable
class Acts(Protocol):
    """What has `act`: a learned `Policy`, a hand-made `Schedule`."""

    @property
    def action_space(self) -> gym.spaces.Box:
        """Where its actions lie."""

    def act(self, observation: Observation) -> NDArray[np.float32]:
        """Return the action for an observation."""


class PolicyAgent(Agent):
    """Does what a policy says, and learns nothing more.

    Attributes:
        policy: what decides.

    Raises:
        InvalidArgumentError: there is no policy, or it acts in another space.
        MissingDataError: there is no policy in the folder.
        DamagedDataError: a file of the policy is damaged.
    """

    learned = "policy"
    seeded = False

    def __init__(self, problem: SearchProblem, *, policy: Acts | Path | str | None = None) -> None:
        """Take a policy, or the folder it was saved in; nothing is random: the seed is unused."""
        super().__init__(problem)
        if policy is None:
            raise InvalidArgumentError(
                "`policy` must be a policy or the folder of a saved one, got None; train one with "
                "`fedhpo_gym.agents.rl.sb3.train`."
            )
        self.policy = load_policy(Path(policy)) if isinstance(policy, str | Path) else policy
        space = getattr(self.policy, "action_space", None)
        if space != self.action_space:
            raise InvalidArgumentError(
                f"`policy` must act in {self.action_space}, got {type(self.policy).__name__} for "
                f"{space}; make one for this environment."
            )

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        return self.policy.act(observation)
