"""What an agent is: one optimizer that sees only the public interface of an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

Observation = Mapping[str, NDArray[Any]]


class Agent(ABC):
    """One optimizer. Sees only spaces, observations, rewards and infos.

    An agent lives for one episode: every HPO run gets a new one.

    Attributes:
        per_client: whether it acts for every client, in environments made with
            `per_client=True`, whose actions have one row per client.
        action_space: what `ask` must answer with: a bounded box of (n,) float32 coordinates, or of
            (clients, n) where `per_client`.
        seed: the only source of the agent's randomness.

    Raises:
        InvalidArgumentError: the action space is no bounded `Box` of such a shape.
    """

    per_client: ClassVar[bool] = False

    def __init__(self, action_space: gym.Space[Any], seed: int) -> None:
        self.action_space = _as_box(action_space, self.per_client)
        self.seed = seed

    @abstractmethod
    def ask(self, observation: Observation) -> NDArray[np.float32]:
        """Return the next action, a point of `action_space`: (n,) float32.

        Args:
            observation: what `reset` or the last `step` returned.
        """

    def tell(  # noqa: B027 - an agent that learns nothing, such as random search, is a whole agent
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Take in the outcome of the action that `ask` returned; by default, forget it.

        Args:
            action: (n,) what was done.
            reward: what it brought; higher is better.
            observation: what the environment shows now.
            terminated: whether the budget is spent.
            info: what the environment reports about this step.
        """


def scalar(reward: float) -> float:
    """Return a reward as the number that a single-objective optimizer is told.

    Raises:
        InvalidArgumentError: it is a vector.
    """
    if np.ndim(reward):
        raise InvalidArgumentError(
            f"`reward` must be one number, got shape {np.shape(reward)}; use the environment id "
            "without `MO-`, whose reward is a float."
        )
    return float(reward)


def _as_box(space: gym.Space[Any], per_client: bool) -> gym.spaces.Box:
    axes = 2 if per_client else 1
    if isinstance(space, gym.spaces.Box) and len(space.shape) == axes and space.is_bounded():
        return space
    shape, advice = (
        ("(clients, n)", "make the environment with per_client=True and")
        if per_client
        else ("(n,)", "make the environment without per_client and")
    )
    raise InvalidArgumentError(
        f"`action_space` must be a bounded Box of shape {shape}, got {space}; {advice} use it "
        "without wrappers that replace its actions."
    )
