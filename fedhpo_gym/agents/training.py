"""Shared parts of all ways to learn a policy: environments side by side, and the result."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy

Vectors = gym.vector.VectorEnv[Any, Any, Any]
Progress = Callable[[int], object]
"""Called with the number of steps of environments since the last call."""
Judge = Callable[[int, Policy], object]
"""Called with the number of steps of environments so far, and the policy of that time."""
Moment = tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Training:
    """The policy that was learned, and the sums of rewards of all episodes as they ended."""

    policy: Policy
    episode_returns: NDArray[np.float64]


def make_vector(env_id: str, num_envs: int, arguments: Mapping[str, Any]) -> Vectors:
    """Make the vector form of an id in which policies are trained."""
    if gym.spec(env_id).vector_entry_point is None:
        options = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gym.make_vec(
            env_id, num_envs, vectorization_mode="sync", vector_kwargs=options, **arguments
        )
    return gym.make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP.value, **arguments)


def play(
    env: Vectors,
    act: Callable[[int, dict[str, NDArray[Any]]], NDArray[Any]],
    progress: Progress | None = None,
    **start: Any,
) -> Iterator[Moment]:
    """Play one episode in each of N environments that `make_vector` made, until all have ended.

    `act` is given the number of a step, from 0, and observations; `start` are arguments of `reset`.

    Yields:
        For each step observations, actions, rewards (0 after the end), and which episodes run.
    """
    observation, _ = env.reset(**start)
    alive, step = np.ones(env.num_envs, dtype=np.bool_), 0
    while alive.any():
        actions = act(step, observation)
        next_observation, rewards, terminated, truncated, _ = env.step(actions)
        if progress is not None:
            progress(env.num_envs)
        yield observation, actions, np.where(alive, rewards, 0.0), alive
        observation, alive, step = next_observation, alive & ~(terminated | truncated), step + 1
