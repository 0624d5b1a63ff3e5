"""The catalogue of tasks, with one module of literals per family.

Environments, the command line and studies get a task by its key with `get_task`. `TASKS` are the
tasks of the package; tasks of natural federations are created on first use. Version 1 of a task
uses the stored numbers of version 0 and differs in its default reward.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.core.identity import OMITTED_VALUES, Identity
from fedhpo_gym.core.plugins import LazyDict, Registry
from fedhpo_gym.data.natural import NATURAL, NaturalTable
from fedhpo_gym.tasks.base import REWARDS, Problem
from fedhpo_gym.tasks.cross_device import CROSS_DEVICE_TASKS
from fedhpo_gym.tasks.dynamic import DYNAMIC, CourseProblem
from fedhpo_gym.tasks.federated import Instance, Task, make_instances
from fedhpo_gym.tasks.logistic_regression import LR_TASKS
from fedhpo_gym.tasks.natural import (
    TRIALS_ONLY,
    joint_names,
    joint_problems,
    natural_names,
    natural_tasks,
    shared_fields,
)
from fedhpo_gym.tasks.networks import BERT_TASKS, CNN_TASKS, GNN_TASKS, HETERO_TASKS, MLP_TASKS
from fedhpo_gym.tasks.quadratic import QUADRATIC
from fedhpo_gym.tasks.work import decisive_names, job_clock, round_system, work_of


@validate_call
def make_catalogue(tasks: Iterable[Task]) -> Mapping[str, Task]:
    """Return tasks by key, `<name>-v<version>`, in their order."""
    catalogue: dict[str, Task] = {}
    for task in tasks:
        if task.key in catalogue:
            raise InvalidArgumentError(
                f"`tasks` must differ in name or version, got two {task.key}"
            )
        catalogue[task.key] = task
    return MappingProxyType(catalogue)


@validate_call
def with_version_one(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield tasks, and after each of version 0 a version 1, unless they bring their own.

    It differs by its reward, the improvement of the incumbent, and answers from version 0's
    numbers.
    """
    written = tuple(tasks)
    with_own_version = {task.name for task in written if task.version == 1}
    for task in written:
        yield task
        if task.version == 0 and task.name not in with_own_version:
            yield task.variant(version=1, numbers=0, reward="improvement")


@cache
def _tasks_on(table: NaturalTable) -> Mapping[str, Task]:
    return make_catalogue((*natural_tasks(table), *joint_problems(shared_fields(table))))


def _trained(table: NaturalTable, key: str) -> Task:
    return _tasks_on(table)[key]


TASKS = make_catalogue(
    with_version_one(
        (
            *LR_TASKS,
            *MLP_TASKS,
            *CNN_TASKS,
            *BERT_TASKS,
            *CROSS_DEVICE_TASKS,
            *GNN_TASKS,
            *HETERO_TASKS,
        )
    )
)
"""All versions of all problems, by `<name>-v<version>`; `get_task` knows shorter names."""

TRAINED: Mapping[str, Task] = LazyDict(
    {
        key: partial(_trained, table, key)
        for names in (joint_names, natural_names)
        for table in NATURAL
        for key in (f"{name}-v1" for name in names(table))
    }
)
"""Registered problems that are always trained, by `<name>-v<version>`: the package has no numbers
of them, and statements about `TASKS` do not include them. They are many and are created on first
use, so that importing stays quick."""


def _dynamic(name: str) -> Task:
    problem = DYNAMIC[name]
    return CourseProblem.like(get_task(problem.task), name, problem.changes)


ROUNDS_ONLY: Mapping[str, Task] = LazyDict(
    {QUADRATIC.key: lambda: QUADRATIC, **{f"{n}-v1": partial(_dynamic, n) for n in DYNAMIC}}
)
"""Problems that have round ids alone, by `<name>-v<version>`; what ids bring, they say."""

REGISTERED: Registry[Task] = Registry("task", lambda: {*TASKS, *TRAINED, *ROUNDS_ONLY})
"""Problems that users have added, by `<name>-v<version>`."""


def _catalogues() -> tuple[Mapping[str, Task], ...]:
    return TASKS, TRAINED, ROUNDS_ONLY, REGISTERED


@validate_call
def get_task(name: str) -> Task:
    """Return a task by name, with or without prefixes of ids and the version.

    Raises:
        UnknownNameError: no such task, or no such version.
    """
    short = name.removeprefix("MO-").removeprefix("FedHPO-")
    if not short.removeprefix("DAC-").startswith(TRIALS_ONLY):
        short = short.removeprefix("DAC-")
    for catalogue in _catalogues():
        if short in catalogue:
            return catalogue[short]
    keys = [key for catalogue in _catalogues() for key in catalogue]
    versions = [key for key in keys if key.rpartition("-v")[0] == short]
    if not versions:
        prefix = name.removesuffix(short)
        key_by_name = {key if "-v" in short else key.rpartition("-v")[0]: key for key in keys}
        of_rounds = "DAC-" * ("FedHPO-" in prefix and "DAC-" not in prefix)
        names = {f"{prefix}{of_rounds * (k in ROUNDS_ONLY)}{n}" for n, k in key_by_name.items()}
        raise unknown_name("task", name, names)
    return get_task(max(versions, key=lambda key: int(key.rpartition("-v")[2])))


@validate_call
def versions_of(name: str) -> tuple[Task, ...]:
    """Return all versions of a problem by its name, without prefixes, as they stand."""
    return tuple(
        catalogue[key]
        for catalogue in _catalogues()
        for key in catalogue
        if key.rpartition("-v")[0] == name
    )


@validate_call
def task_of(identity: Identity) -> Task:
    """Return the variant that stored numbers belong to; later versions may share them."""
    changes: dict[str, Any] = {**OMITTED_VALUES, **dict(identity.options)}
    task = get_task(identity.id).variant(**changes).fix(dict(identity.settings))
    return task.tune({name: ends for name, *ends in identity.tuned})


__all__ = [
    "REGISTERED",
    "REWARDS",
    "ROUNDS_ONLY",
    "TASKS",
    "TRAINED",
    "TRIALS_ONLY",
    "Instance",
    "Problem",
    "Task",
    "decisive_names",
    "get_task",
    "job_clock",
    "make_catalogue",
    "make_instances",
    "round_system",
    "task_of",
    "versions_of",
    "with_version_one",
    "work_of",
]
