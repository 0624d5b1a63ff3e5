"""Round environments as PettingZoo parallel environments: every client is an agent.

Users wrap a `FedHPO-DAC-*` environment with `per_client=True` in `ClientsParallelEnv`. The class
splits actions, observations and `info` by client and leaves all training to the environment. Arrays
with one entry per client are reduced to the agent's entry, since N copies of N numbers would grow
quadratically.
"""

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from fedhpo_gym.core.checks import coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.round.env import RoundEnv
from fedhpo_gym.envs.round.settings import DECADES
from fedhpo_gym.space.per_client import split_key

Observation = dict[str, NDArray[np.float32]]
Action = NDArray[np.float32]

OWN: Final = ("sampled", "num_val_samples", "val_loss_before", "val_loss_after")
"""Entries of observations with one number per client; an agent gets only its number."""

OWN_INFO: Final = ("num_train_samples", "num_val_samples", "val_loss_before", "val_loss_after")
"""Entries of `info` with one number per client; an agent gets only its number."""

REWARDS: Final = ("team", "own")


class ClientsParallelEnv(ParallelEnv):  # type: ignore[misc]  # untyped
    """The clients of a course as agents that act at the same time: `client_0`, `client_1`, ...

    Every agent sets the hyperparameters of its client; its action is ignored while the client does
    not train. It observes the course (`RoundEnv`) and, with shape (n,) or (1,), its last action,
    `sampled`, `num_val_samples`, `val_loss_before` and `val_loss_after`. All agents stay until the
    end of the episode. The `info` of an agent is that of the environment, with the numbers of its
    client only.

    **Reward**: "team" gives all agents the reward of the environment. "own" gives each agent the
    change of its client's validation loss by local training, log10(before / after), and 0 while
    the client does not train.

    Attributes:
        env: the environment in its per-client form.
        possible_agents: all clients.
        agents: all clients during an episode, an empty list after it.
    """

    # PettingZoo declares it on instances, so it cannot be a ClassVar here.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "name": "fedhpo_dac_clients_v0",
        "render_modes": ["human", "rgb_array"],
        "is_parallelizable": True,
    }

    def __init__(self, env: gym.Env[Any, Any], reward: str = "team") -> None:
        """Create an agent for every client of an environment."""
        course = env.unwrapped if isinstance(env, gym.Env) else None
        if not isinstance(course, RoundEnv) or course.process.controls.num_rows is None:
            raise InvalidArgumentError(
                "`env` must be a FedHPO-DAC-* environment made with per_client=True, got "
                f"{short_repr(env)}"
            )
        if coerce("reward", reward, str) not in REWARDS:
            raise InvalidArgumentError(
                f"`reward` must be one of {REWARDS}, got {short_repr(reward)}"
            )
        if course.vector_reward:
            raise InvalidArgumentError("`env` must have scalar rewards; use the id without MO-")
        self.env = env
        self.render_mode = env.render_mode
        self._own_reward = reward == "own"
        self.possible_agents = [f"client_{i}" for i in range(course.process.controls.num_rows)]
        self.agents: list[str] = []
        width = len(course.search_space)
        self._action_spaces = {
            agent: gym.spaces.Box(-1.0, 1.0, (width,), np.float32) for agent in self.possible_agents
        }
        self._observation_spaces = {
            agent: _own_space(course.process.observation_space, width)
            for agent in self.possible_agents
        }
        self._width = width

    def observation_space(self, agent: str) -> gym.spaces.Dict:
        """Return the observation space of an agent: the same object at every call."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gym.spaces.Box:
        """Return the action space of an agent: the same object at every call."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Start a course (`RoundEnv.reset`); unknown options are ignored, as in PettingZoo."""
        entries = coerce("options", {} if options is None else options, Mapping[str, Any])
        instance_option = {name: value for name, value in entries.items() if name == "instance"}
        observation, info = self.env.reset(seed=seed, options=instance_option)
        self.agents = list(self.possible_agents)
        return self._split(observation), self._split_info(info)

    def step(
        self, actions: dict[str, Action]
    ) -> tuple[
        dict[str, Observation],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Train with the hyperparameters of all agents."""
        if not self.agents:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call `reset`")
        actions = coerce("actions", actions, Mapping[str, Any])
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise InvalidArgumentError(f"`actions` must have one for every agent, lacks {missing}")
        rows = np.stack([self._row(agent, actions[agent]) for agent in self.possible_agents])
        observation, reward, terminated, truncated, info = self.env.step(rows)
        agents, rewards = self.agents, self._rewards(observation, float(reward))
        observations, infos = self._split(observation), self._split_info(info)
        if terminated or truncated:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            infos,
        )

    def _row(self, agent: str, action: object) -> NDArray[np.floating]:
        row = coerce_reals(f"actions[{agent!r}]", action)
        if row.shape != (self._width,):
            raise InvalidArgumentError(
                f"`actions[{agent!r}]` must have shape ({self._width},), got {row.shape}"
            )
        return row

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _split(self, observation: Observation) -> dict[str, Observation]:
        shared = {k: v for k, v in observation.items() if k not in (*OWN, "last_action")}
        rows = observation["last_action"].reshape(-1, self._width)
        return {
            agent: {
                **{name: value.copy() for name, value in shared.items()},
                **{name: observation[name][i : i + 1].copy() for name in OWN},
                "last_action": rows[i].copy(),
            }
            for i, agent in enumerate(self.possible_agents)
        }

    def _split_info(self, info: dict[str, Any]) -> dict[str, dict[str, Any]]:
        per_client = {name: info[name] for name in OWN_INFO if name in info}
        by_client = _split_nested(
            {k: v for k, v in info.items() if k not in per_client}, len(self.agents)
        )
        return {
            agent: {**shared, **{name: values[i] for name, values in per_client.items()}}
            for i, (agent, shared) in enumerate(zip(self.agents, by_client, strict=True))
        }

    def _rewards(self, observation: Observation, team: float) -> dict[str, float]:
        if not self._own_reward:
            return dict.fromkeys(self.agents, team)
        gains = (observation["val_loss_before"] - observation["val_loss_after"]) * DECADES
        return {agent: float(gains[i]) for i, agent in enumerate(self.possible_agents)}


def _own_space(spaces: gym.spaces.Dict, width: int) -> gym.spaces.Dict:
    boxes: dict[str, gym.Space[Any]] = {}
    for name, box in spaces.spaces.items():
        assert isinstance(box, gym.spaces.Box)  # noqa: S101 - all spaces are boxes
        size = width if name == "last_action" else 1
        shape = (size,) if name in (*OWN, "last_action") else box.shape
        boxes[name] = gym.spaces.Box(box.low.min(), box.high.max(), shape, np.float32)
    return gym.spaces.Dict(boxes)


def _split_nested(value: dict[str, Any], num_clients: int) -> list[dict[str, Any]]:
    """Return a copy for every client, in which `name@i` becomes the `name` of client i."""
    by_client: list[dict[str, Any]] = [{} for _ in range(num_clients)]
    for key, entry in value.items():
        name, client = split_key(key)
        if client is not None:
            by_client[client][name] = entry
            continue
        values = (
            _split_nested(entry, num_clients) if isinstance(entry, dict) else [entry] * num_clients
        )
        for client_info, copied in zip(by_client, values, strict=True):
            client_info[key] = list(copied) if isinstance(copied, list) else copied
    return by_client
