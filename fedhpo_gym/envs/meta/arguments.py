"""Entry points of the ids of FedHPO-B and of generated tasks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from fedhpo_gym.envs.arguments import check_own, from_names, takes
from fedhpo_gym.envs.meta.env import MetaEnv, MetaVectorEnv
from fedhpo_gym.envs.meta.generated import GeneratedArguments, open_generated_setup
from fedhpo_gym.envs.meta.pools import PoolArguments, open_setup


@takes(PoolArguments)
def make_pool_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
    """Make an environment of FedHPO-B (`PoolArguments`)."""
    check_own(make_pool_env, {"render_mode": render_mode})
    asked = from_names(PoolArguments, arguments, ("render_mode",), "space")
    return MetaEnv(open_setup(asked), render_mode=render_mode)


@takes(PoolArguments)
def make_pool_vector_env(
    *,
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    **arguments: Any,
) -> MetaVectorEnv:
    """Make N of them as one (`PoolArguments`)."""
    asked = from_names(PoolArguments, arguments, ("autoreset_mode", "copy"), "space")
    return MetaVectorEnv(num_envs, open_setup(asked), autoreset_mode=autoreset_mode, copy=copy)


@takes(GeneratedArguments)
def make_generated_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
    """Make an environment of generated tasks (`GeneratedArguments`)."""
    check_own(make_generated_env, {"render_mode": render_mode})
    asked = from_names(GeneratedArguments, arguments, ("render_mode",), "space")
    return MetaEnv(open_generated_setup(asked), render_mode=render_mode)


@takes(GeneratedArguments)
def make_generated_vector_env(
    *,
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    **arguments: Any,
) -> MetaVectorEnv:
    """Make N of them as one (`GeneratedArguments`)."""
    asked = from_names(GeneratedArguments, arguments, ("autoreset_mode", "copy"), "space")
    setup = open_generated_setup(asked)
    return MetaVectorEnv(num_envs, setup, autoreset_mode=autoreset_mode, copy=copy)
