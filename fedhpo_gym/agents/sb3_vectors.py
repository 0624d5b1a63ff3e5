"""Vector environments of Gymnasium in the form stable-baselines3 trains in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

Vectors = gym.vector.VectorEnv[Any, Any, Any]


def make_vector(env_id: str, num_envs: int, arguments: Mapping[str, Any]) -> Vectors:
    """Make the vector form of an id that `train` can use."""
    if gym.spec(env_id).vector_entry_point is None:
        options = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gym.make_vec(
            env_id, num_envs, vectorization_mode="sync", vector_kwargs=options, **arguments
        )
    return gym.make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP.value, **arguments)


class JoinedVecEnv(VecEnv):
    """Vector environments of Gymnasium, side by side, as one of stable-baselines3.

    Attributes:
        episode_returns: sum of rewards of every episode that ended.
    """

    def __init__(
        self,
        parts: Sequence[Vectors],
        seed: int,
        progress: Callable[[int], object] | None = None,
        share_starts: bool = False,
    ) -> None:
        """Join environments.

        Args:
            parts: vector environments.
            seed: part j is reset with a seed drawn from stream "sb3_reset", j.
            progress: called with the number of environments after every step, if given.
            share_starts: give every environment of a part the same seed.
        """
        for part in parts:
            _check_usable(part, parts[0])
        self.parts = tuple(parts)
        self.episode_returns: list[float] = []
        self._progress = progress
        drawn = [int(stream(seed, "sb3_reset", j).integers(2**31)) for j in range(len(parts))]
        self._first_seeds: list[int | list[int] | None] = [
            [one] * part.num_envs if share_starts else one
            for one, part in zip(drawn, parts, strict=True)
        ]
        self._cuts = np.cumsum([part.num_envs for part in parts])[:-1]
        self._actions: NDArray[Any] = np.empty(0)
        total = sum(part.num_envs for part in parts)
        self._returns = np.zeros(total)
        super().__init__(total, parts[0].single_observation_space, parts[0].single_action_space)

    def reset(self) -> dict[str, NDArray[Any]]:
        seeds, self._first_seeds = self._first_seeds, [None] * len(self.parts)
        # Ours and SyncVectorEnv take a list of seeds; VectorEnv.reset declares one only.
        shown = [
            part.reset(seed=seed)[0]  # type: ignore[arg-type]
            for part, seed in zip(self.parts, seeds, strict=True)
        ]
        self._returns[:] = 0.0
        return _side_by_side(shown)

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any], list[dict[str, Any]]]:
        pieces = np.split(self._actions, self._cuts)
        outcomes = [part.step(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        rewards, terminated, truncated = (
            np.concatenate([outcome[field] for outcome in outcomes]) for field in (1, 2, 3)
        )
        if rewards.ndim != 1:
            raise InvalidArgumentError(
                f"rewards must be numbers, got shape {rewards.shape}; use the id without `MO-`."
            )
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        start = 0
        for part, outcome in zip(self.parts, outcomes, strict=True):
            for index in np.flatnonzero(done[start : start + part.num_envs]).tolist():
                infos[start + index]["terminal_observation"] = outcome[4]["final_obs"][index]
            start += part.num_envs
        self._returns += rewards
        for index in np.flatnonzero(done).tolist():
            infos[index]["TimeLimit.truncated"] = not terminated[index]
            self.episode_returns.append(float(self._returns[index]))
            self._returns[index] = 0.0
        if self._progress is not None:
            self._progress(self.num_envs)
        shown = _side_by_side([outcome[0] for outcome in outcomes])
        return shown, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        number = len(list(self._get_indices(indices)))
        return [getattr(self.parts[0], attr_name)] * number

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise InvalidArgumentError(f"{attr_name!r} cannot be set: courses share their environment.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        raise InvalidArgumentError(
            f"{method_name!r} cannot be called: courses share their environment."
        )

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


def _check_usable(part: Vectors, first: Vectors) -> None:
    if part.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        raise InvalidArgumentError(
            "`env` must be reset in the last step of an episode, got autoreset mode "
            f'{part.metadata.get("autoreset_mode")}; make it with autoreset_mode="SameStep".'
        )
    shown, acts = part.single_observation_space, part.single_action_space
    if (shown, acts) != (first.single_observation_space, first.single_action_space):
        raise InvalidArgumentError(
            f"`env` must hold environments with equal spaces, got {shown}, {acts} beside "
            f"{first.single_observation_space}, {first.single_action_space}."
        )
    if not isinstance(acts, gym.spaces.Box) or not isinstance(shown, gym.spaces.Dict):
        raise InvalidArgumentError(
            f"`env` must show a dictionary and act in a Box, got {shown} and {acts}; use it "
            "without wrappers that replace them."
        )


def _side_by_side(shown: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in shown]) for name in shown[0]}
