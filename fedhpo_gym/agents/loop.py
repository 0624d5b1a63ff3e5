"""The loop between an agent and an environment, written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an episode, as the environment returned it.

    Attributes:
        action: (n,) what the agent did.
        reward: a number, or a vector in `MO-` environments.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        info: what the environment reports about the step.
    """

    action: NDArray[np.float32]
    reward: Any
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


def run_episode(env: gym.Env[Any, Any], agent: Agent, seed: int) -> Iterator[Step]:
    """Run one episode to its end, and yield its steps as they happen.

    Args:
        env: the environment; it is reset first.
        agent: a new agent for the environment's action space.
        seed: seed of the environment's `reset`.

    Yields:
        Every step; the last one is terminated or truncated.
    """
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        action = agent.ask(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        # Environments of vector rewards return arrays here; the agent says whether it can use them.
        agent.tell(action, reward, observation, terminated, info)  # type: ignore[arg-type]
        over = terminated or truncated
        yield Step(action, reward, terminated, truncated, info)
