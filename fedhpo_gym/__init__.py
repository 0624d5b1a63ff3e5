"""Federated hyperparameter optimisation as reinforcement-learning environments.

Importing the package registers its ids with Gymnasium; `gym.make("fedhpo_gym:<id>")` imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from fedhpo_gym.errors import InvalidArgumentError, needing
from fedhpo_gym.tasks import TASKS, Task
from fedhpo_gym.typed import as_typed
from fedhpo_gym.version import __version__

ENTRY_POINT = "fedhpo_gym.envs:make_trial_env"
VECTOR_ENTRY_POINT = "fedhpo_gym.envs:make_trial_vector_env"
ROUND_ENTRY_POINT = "fedhpo_gym.envs:make_round_env"
ROUND_VECTOR_ENTRY_POINT = "fedhpo_gym.envs:make_round_vector_env"


def register_all(tasks: Iterable[Task] = TASKS.values()) -> None:
    """Register `FedHPO-*`, `FedHPO-DAC-*`, and their `MO-` twins with vector rewards, once.

    Every version of a problem has ids of its own.

    Only strings are registered; what an id needs is imported when it is made. Gymnasium's checker
    knows no vector rewards and would warn at every step, so the twins go without it.
    """
    for task in tasks:
        for prefix, extra in (("", {}), ("MO-", {"vector_reward": True})):
            _register(
                prefix + task.id,
                ENTRY_POINT,
                vector_entry_point=VECTOR_ENTRY_POINT,
                disable_env_checker=bool(extra),
                kwargs={"task": task.key, **extra},
            )
            _register(
                prefix + task.round_id,
                ROUND_ENTRY_POINT,
                vector_entry_point=ROUND_VECTOR_ENTRY_POINT,
                disable_env_checker=bool(extra),
                kwargs={"task": task.key, "preprocessing": task.round_preprocessing, **extra},
            )


def _register(name: str, entry_point: str, **options: Any) -> None:
    if name not in gym.registry:
        gym.register(name, entry_point, **options)


def parallel_env(env_id: str, *, reward: str = "team", **arguments: Any) -> Any:
    """Make a round environment whose clients are agents, as a PettingZoo parallel environment.

    Args:
        env_id: a `FedHPO-DAC-*` id.
        reward: "team" or "own"; see `fedhpo_gym.envs.round.parallel.ClientsParallelEnv`.
        arguments: further arguments of `gymnasium.make`.

    Raises:
        MissingDependencyError: the extra `marl` is not installed.
        InvalidArgumentError: the id is of another kind, or an argument is out of its range.
    """
    _require_round_id(as_typed("env_id", env_id, str))
    with needing("making clients agents", "PettingZoo", "marl", "pettingzoo"):
        from fedhpo_gym.envs.round.parallel import ClientsParallelEnv
    return ClientsParallelEnv(gym.make(env_id, per_client=True, **arguments), reward)


def _require_round_id(env_id: str) -> None:
    """Refuse ids of other kinds; one that nobody registered is left to `gymnasium.make`."""
    name = env_id.rpartition(":")[2]
    known = [spec for key, spec in gym.registry.items() if name in (key, key.rpartition("-v")[0])]
    if known and all(spec.entry_point != ROUND_ENTRY_POINT for spec in known):
        raise InvalidArgumentError(
            "`env_id` must be a FedHPO-DAC-* id, whose clients can act as agents, got "
            f"{env_id!r}; in a trial environment one action is for the whole federation"
        )


register_all()

__all__ = ["__version__", "parallel_env", "register_all"]
