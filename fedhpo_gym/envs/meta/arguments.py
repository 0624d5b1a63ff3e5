"""Entry points of the ids of FedHPO-B and of generated tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from fedhpo_gym.envs.arguments import check_own, from_names, takes
from fedhpo_gym.envs.meta.env import MetaEnv, MetaVectorEnv
from fedhpo_gym.envs.meta.generated import GeneratedArguments
from fedhpo_gym.envs.meta.pools import PoolArguments


def _entry_points(
    record: type[PoolArguments | GeneratedArguments],
) -> tuple[Callable[..., gym.Env[Any, Any]], Callable[..., MetaVectorEnv]]:
    """Return what makes an environment, and what makes N as one, of a kind of arguments."""

    @takes(record)
    def make_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
        check_own(make_env, {"render_mode": render_mode})
        setup = from_names(record, arguments, ("render_mode",), "space").open()
        return MetaEnv(setup, render_mode=render_mode)

    @takes(record)
    def make_vector_env(
        *,
        num_envs: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **arguments: Any,
    ) -> MetaVectorEnv:
        setup = from_names(record, arguments, ("autoreset_mode", "copy"), "space").open()
        return MetaVectorEnv(num_envs, setup, autoreset_mode=autoreset_mode, copy=copy)

    return make_env, make_vector_env


make_pool_env, make_pool_vector_env = _entry_points(PoolArguments)
make_generated_env, make_generated_vector_env = _entry_points(GeneratedArguments)
