"""Entry points of the ids of FedHPO-B."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from fedhpo_gym.envs.arguments import check_own, from_names, takes
from fedhpo_gym.envs.pool.env import PoolEnv, PoolVectorEnv
from fedhpo_gym.envs.pool.setup import PoolArguments, PoolSetup, open_setup


@takes(PoolArguments)
def make_pool_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
    """Make an environment of FedHPO-B (`PoolArguments`)."""
    check_own(make_pool_env, {"render_mode": render_mode})
    return PoolEnv(_setup(arguments, "render_mode"), render_mode=render_mode)


@takes(PoolArguments)
def make_pool_vector_env(
    *,
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    **arguments: Any,
) -> PoolVectorEnv:
    """Make N of them as one (`PoolArguments`)."""
    setup = _setup(arguments, "autoreset_mode", "copy")
    return PoolVectorEnv(num_envs, setup, autoreset_mode=autoreset_mode, copy=copy)


def _setup(arguments: dict[str, Any], *others: str) -> PoolSetup:
    return open_setup(from_names(PoolArguments, arguments, others, "space"))
