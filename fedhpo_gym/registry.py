"""Registering ids: strings only, nothing heavy is imported."""

import gymnasium as gym

from fedhpo_gym.tasks import TASKS

ENTRY_POINT = "fedhpo_gym.envs.registration:make_trial_env"


def register_all() -> None:
    """Register `FedHPO-*` ids and their `MO-FedHPO-*` twins with vector rewards, once."""
    for name, task in TASKS.items():
        for prefix, extra in (("", {}), ("MO-", {"vector_reward": True})):
            if prefix + task.id not in gym.registry:
                gym.register(prefix + task.id, ENTRY_POINT, kwargs={"task": name, **extra})
