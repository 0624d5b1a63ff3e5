"""The loop between an agent and an environment, written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent
from fedhpo_gym.typed import checked_types


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an episode, as the environment returned it.

    Attributes:
        action: (n,) what the agent did.
        reward: a number, or a vector in `MO-` environments.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        info: what the environment reports about the step.
        worker: which simulated worker did it; None where there are none.
    """

    action: NDArray[np.float32]
    reward: Any
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    worker: int | None = None


@checked_types
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


class Crew(Protocol):
    """Workers that run trials side by side, as `fedhpo_gym.parallel` makes them."""

    @property
    def free(self) -> int:
        """How many workers have nothing to do."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; all workers are free."""

    def start(self, action: NDArray[np.float32]) -> int:
        """Give a trial to a free worker."""

    def finish(self) -> Any:
        """Return the next trial that ends; see `fedhpo_gym.wrappers.parallel_trials.Finished`."""


@checked_types
def run_crew(crew: Crew, agent: Agent, seed: int) -> Iterator[Step]:
    """Run one episode of simulated workers to its end, and yield its trials as they end.

    Whenever a worker is free, the agent is asked, before it knows what the others will find.

    Args:
        crew: the workers; their environment is reset first.
        agent: a new agent for the environment's action space.
        seed: seed of `reset`.

    Yields:
        Every trial that ends; the last one is terminated or truncated.
    """
    observation, _ = crew.reset(seed=seed)
    over = False
    while not over:
        while crew.free:
            crew.start(agent.ask(observation))
        done = crew.finish()
        observation = done.observation
        agent.tell(done.action, done.reward, observation, done.terminated, done.info)
        over = done.terminated or done.truncated
        yield Step(
            done.action, done.reward, done.terminated, done.truncated, done.info, done.worker
        )
