"""Rollouts of an agent as a data set of Minari (Younis et al., 2024), for offline learning."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.agents import Agent, make_agent, read_problem, run_episode
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional


@validate_call
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
        InvalidArgumentError: `dataset_id` is none of Minari's, or taken.
        MissingDependencyError: Minari is not installed.
        UnknownNameError: there is no such agent.
    """
    with require_optional("a data set of rollouts", "minari", "minari", "minari", "h5py", "PIL"):
        import minari
        from minari.data_collector.episode_buffer import EpisodeBuffer
    _require_new(dataset_id)
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    buffers = []
    for index in range(episodes):
        episode_seed = seed + index
        if isinstance(agent, str):
            player = make_agent(agent, env, seed=episode_seed)
        else:
            player = _Policy(env, episode_seed, agent)
        first = env.reset(seed=episode_seed)[
            0
        ]  # the loop below sees it, too, and tells only what follows
        steps = list(run_episode(env, player, episode_seed))
        buffers.append(
            EpisodeBuffer(
                id=index,
                seed=episode_seed,
                observations=_stack([first, *(step.observation for step in steps)]),
                actions=np.array([step.action for step in steps]),
                rewards=[step.reward for step in steps],
                terminations=[step.terminated for step in steps],
                truncations=[step.truncated for step in steps],
            )
        )
    return minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        env=env,
        algorithm_name=agent if isinstance(agent, str) else getattr(agent, "__name__", "policy"),
        data_format="hdf5",  # arrow refuses rewards that are vectors
        requirements=["fedhpo-gym"],
    )


def _require_new(dataset_id: str) -> None:
    """Refuse an id before the episodes are played; Minari would refuse it afterwards."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import validate_namespace
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        namespace = parse_dataset_id(dataset_id)[0]
        if namespace is not None:
            validate_namespace(namespace)
    except (TypeError, ValueError) as error:  # a TypeError where there is no version
        raise InvalidArgumentError(
            "`dataset_id` must be a name and a version, such as fedhpo/creditg/random-v0, got "
            f"{dataset_id!r}"
        ) from error
    if (path := get_dataset_path(dataset_id)).exists():
        raise InvalidArgumentError(
            f"`dataset_id` must be new, got {dataset_id!r}, which is in {path}; raise its version, "
            "or run `minari delete` first"
        )


class _Policy(Agent):
    """A function from observations to actions."""

    def __init__(self, env: gym.Env[Any, Any], seed: int, act: Callable[[Any], Any]) -> None:
        super().__init__(read_problem(env, seed))
        self._act = act

    def ask(self, observation: Any) -> Any:
        return self._act(observation)


def _stack(observations: list[Any]) -> Any:
    """Return observations as arrays of T + 1 rows, in a dictionary if each is one."""
    if isinstance(observations[0], Mapping):
        return {
            key: _stack([observation[key] for observation in observations])
            for key in observations[0]
        }
    return np.array(observations)
