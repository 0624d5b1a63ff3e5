"""Checks of the environment that a wrapper wraps."""

from typing import Any

import gymnasium as gym

from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import InvalidArgumentError


def check_env(env: Any, *needed: str) -> gym.Env[Any, Any]:
    """Return an environment that has some attributes, its own or those of its wrappers."""
    if not isinstance(env, gym.Env):
        raise InvalidArgumentError(
            f"`env` must be an environment, as `gymnasium.make` returns it, got {short_repr(env)}"
        )
    missing = [name for name in needed if not env.has_wrapper_attr(name)]
    if missing:
        raise InvalidArgumentError(
            f"`env` must have {missing}, as FedHPO-<Model>-<Dataset> environments do, got {env}"
        )
    return env
