"""Rollouts of an agent as a data set of Minari (Younis et al., 2024), for offline learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.agents import make_agent
from fedhpo_gym.agents.base import Step
from fedhpo_gym.core.checks import Range, checked_types
from fedhpo_gym.core.errors import needing


@checked_types
def write_dataset(
    dataset_id: str,
    env_id: str,
    agent: str | Callable[[Any], Any] = "random",
    *,
    episodes: Annotated[int, Range(1)] = 10,
    seed: Annotated[int, Range(0)] = 0,
    **arguments: Any,
) -> Any:
    """Play episodes and return the `minari.MinariDataset` of them, which is stored.

    Episode i is reset with `seed + i`, and an agent is made anew with the same number. So its
    actions, played again in `recover_environment()` after that reset, bring the same rewards.
    Infos are left out: those of a reset and of a step have other keys.

    Args:
        dataset_id: as Minari wants it: `fedhpo/creditg/random-v0`.
        env_id: any id, of trials or rounds; rewards may be vectors.
        agent: a name of `AGENTS`, or a function from an observation to an action.
        episodes: how many.
        seed: of the first episode.
        arguments: of `gymnasium.make`.

    Raises:
        MissingDependencyError: Minari is not installed.
        UnknownNameError: there is no such agent.
    """
    with needing("a data set of rollouts", "minari", "minari", "minari", "h5py", "PIL"):
        import minari
        from minari.data_collector.episode_buffer import EpisodeBuffer
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    played = []
    for number in range(episodes):
        own = make_agent(agent, env, seed=seed + number) if isinstance(agent, str) else None
        observations, steps = _episode(env, seed + number, own, agent)
        played.append(
            EpisodeBuffer(
                id=number,
                seed=seed + number,
                observations=_stacked(observations),
                actions=np.array([one.action for one in steps]),
                rewards=[one.reward for one in steps],
                terminations=[one.terminated for one in steps],
                truncations=[one.truncated for one in steps],
            )
        )
    return minari.create_dataset_from_buffers(
        dataset_id,
        played,
        env=env,
        algorithm_name=agent if isinstance(agent, str) else getattr(agent, "__name__", "policy"),
        data_format="hdf5",  # arrow refuses rewards that are vectors
        requirements=["fedhpo-gym"],
    )


def _episode(
    env: gym.Env[Any, Any], seed: int, agent: Any, policy: Any
) -> tuple[list[Any], list[Step]]:
    """Return T + 1 observations and T steps."""
    seen, steps = [env.reset(seed=seed)[0]], list[Step]()
    while not (steps and steps[-1].over):
        action = policy(seen[-1]) if agent is None else agent.ask(seen[-1])
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append(Step(action, reward, terminated, truncated, info, observation=observation))
        if agent is not None:
            agent.tell(steps[-1])
        seen.append(observation)
    return seen, steps


def _stacked(observations: list[Any]) -> Any:
    """Return observations as arrays of T + 1 rows, in the dictionary that each is."""
    if isinstance(observations[0], Mapping):
        return {key: _stacked([one[key] for one in observations]) for key in observations[0]}
    return np.array(observations)
