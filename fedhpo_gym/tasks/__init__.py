"""The catalogue: what is asked. One module of literals per family."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.tasks.base import Task
from fedhpo_gym.tasks.bert import BERT_TASKS
from fedhpo_gym.tasks.cnn import CNN_TASKS
from fedhpo_gym.tasks.cross_device import CROSS_DEVICE_TASKS
from fedhpo_gym.tasks.gnn import GNN_TASKS
from fedhpo_gym.tasks.hetero import HETERO_TASKS
from fedhpo_gym.tasks.instances import Instance, make_instances
from fedhpo_gym.tasks.logistic_regression import LR_TASKS
from fedhpo_gym.tasks.mlp import MLP_TASKS
from fedhpo_gym.tasks.work import decisive_names, round_system, work_of

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            *LR_TASKS,
            *MLP_TASKS,
            *CNN_TASKS,
            *BERT_TASKS,
            *CROSS_DEVICE_TASKS,
            *GNN_TASKS,
            *HETERO_TASKS,
        )
    }
)

TESTING = ("LR-CreditG", "LR-BreastCancer")
"""Representative tasks for fast tests."""


def get_task(name: str) -> Task:
    """Return a task by name, with or without the `FedHPO-` prefix and the version.

    Raises:
        UnknownNameError: no such task.
    """
    short = name.removeprefix("MO-").removeprefix("FedHPO-").removeprefix("DAC-")
    short = short.removesuffix("-v0")
    if short not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[short]


__all__ = [
    "TASKS",
    "TESTING",
    "Instance",
    "Task",
    "decisive_names",
    "get_task",
    "make_instances",
    "round_system",
    "work_of",
]
