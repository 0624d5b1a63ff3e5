"""What answers queries, opened by name; the raw backend trains by `fl/`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fedhpo_gym.backends.base import Backend, CheckedQuery, StoredBackend
from fedhpo_gym.backends.courses import Courses
from fedhpo_gym.backends.tuned import FEWEST, open_tuned, stored_values
from fedhpo_gym.core.checks import as_arguments, as_typed, checked_types
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    needing,
    require_known,
    suggest,
)
from fedhpo_gym.core.identity import OWN_TABLE
from fedhpo_gym.data.catalogue import REGISTERED, load_dataset
from fedhpo_gym.stored.catalogue import find
from fedhpo_gym.tasks import Task, versions_of

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "tabular": "fedhpo_gym.backends.tabular:Tabular",
        "surrogate": "fedhpo_gym.backends.surrogate:SurrogateModel",
        "raw": "fedhpo_gym.backends.raw:Raw",
        "federatedscope": "fedhpo_gym.backends.federatedscope.backend:FederatedScope",
        "function": "fedhpo_gym.backends.function:FunctionBackend",
    }
)
"""Backends by name; a module is imported when its backend is first asked for."""

COURSES: Mapping[str, str] = {
    "raw": "fedhpo_gym.backends.engine_courses:RunningCourses",
    "federatedscope": "fedhpo_gym.backends.federatedscope.courses:FederatedScopeCourses",
}
"""What keeps courses running between the steps of round environments, by backend."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "device": ("raw",),
    "source": ("federatedscope",),
    "interpreter": ("federatedscope",),
    "time_limit_s": ("federatedscope",),
    "own_data": ("federatedscope",),
}
"""What environments pass on to backends -> the backends that take it."""


def _has_table(task: Task) -> bool:
    if task.tuned:
        return len(stored_values("tabular", task, _has_table)) >= FEWEST
    return find(task.table_name, ".table.json") is not None


def _has_surrogate(task: Task) -> bool:
    if task.tuned:
        return len(stored_values("surrogate", task, _has_surrogate)) >= FEWEST
    from fedhpo_gym.stored.surrogate import has_surrogate  # a table needs none of them

    return any(has_surrogate(identity.name) for identity in task.surrogate_identities)


STORED: Mapping[str, Callable[[Task], bool]] = {"tabular": _has_table, "surrogate": _has_surrogate}
"""Backends that answer from stored numbers -> whether they have those of a task."""


@checked_types
def default_backend(task: Task) -> str:
    """Return who answers a task when none is named: table, surrogate, else `unstored`."""
    there = (name for name in STORED if STORED[name](task))
    # A surrogate that was kept although it is too far off is asked by its name only.
    return next((name for name in there if not _is_poor(name, task)), task.unstored)


def _is_poor(name: str, task: Task) -> bool:
    trains = name == "surrogate" and task.unstored == "raw" and not task.tuned
    return trains and bool(make_backend(name, task).why_refused("val_loss"))


@checked_types
def make_backend(name: str, task: Task, **options: Any) -> Backend:
    """Open a backend, "tabular", "surrogate", "raw" or "federatedscope", for a task.

    Raises:
        UnknownNameError: no such backend.
        MissingDataError: it has nothing to answer from.
        MissingDependencyError: it trains, and torch is not installed.
        InvalidArgumentError: it cannot answer this task, or takes no such option or value.
    """
    require_known("backend", as_typed("backend", name, str), BACKENDS)
    if task.asynchronous and name in STORED:
        raise InvalidArgumentError(
            f"`backend` must be 'raw' for {task.algorithm!r}: the clock decides what asynchronous "
            f"courses train on, and stored numbers know no clock; got {name!r}"
        )
    if task.table != OWN_TABLE and name not in STORED:
        raise InvalidArgumentError(
            f"`backend` must be one of {sorted(STORED)} with table={task.table!r}, whose numbers "
            f"are stored, got {name!r}; only {OWN_TABLE!r} trains"
        )
    if task.tuned and name in STORED:
        return open_tuned(name, task, lambda one: make_backend(name, one, **options), STORED[name])
    module, _, attribute = BACKENDS[name].partition(":")
    with needing(f'backend="{name}"', "torch", "raw", "torch"):
        kind = getattr(importlib.import_module(module), attribute)
    taken = as_arguments(f'backend="{name}"', kind, options, ["task"])
    try:
        backend: Backend = kind(task, **taken)
    except MissingDataError as error:
        lacks = name in STORED and not STORED[name](task)
        if lacks and (here := [f"backend={x!r}" for x in STORED if x != name and STORED[x](task)]):
            lack = str(error).partition(";")[0]
            raise MissingDataError(f"{lack}; use {here[0]}, or train: backend='raw'") from error
        others = elsewhere(task) if lacks else []
        if not others:
            raise
        raise MissingDataError(f"{error}; or take another version: {', '.join(others)}") from error
    if task.dataset in REGISTERED:
        _require_data(backend)
    return backend


def _require_data(backend: Backend) -> None:
    """Check that stored numbers are of a user's data as they are now."""
    task, known = backend.task, backend.card.get("data_fingerprint")
    if known is not None and known != load_dataset(task.dataset).fingerprint:
        raise DamagedDataError(
            f"what is stored for {task.id} was computed from other data, or other encodings, than "
            f"{task.dataset} has now; raise the version of the task, or build it again"
        )


@checked_types
def elsewhere(task: Task) -> list[str]:
    """Return other versions whose same variant has stored numbers, and the backends of these."""
    own = ("preprocessing", "precision")  # each version says what they are by default
    kept = (*(name for name in task.options if name not in own), "settings")
    chosen = {name: getattr(task, name) for name in kept}
    known = [one for one in versions_of(task.name) if one.version != task.version]
    return [
        f"{one.id} (backend {name!r})"
        for one in known
        for name, has_numbers in STORED.items()
        if has_numbers(one.variant(**chosen))
    ]


@checked_types
def open_courses(name: str, *given: Any, **options: Any) -> Courses:
    """Put courses of "raw" or "federatedscope" at round 0, to be trained in steps."""
    require_known("backend of courses", as_typed("backend", name, str), COURSES)
    module, _, attribute = COURSES[name].partition(":")
    with needing("really training, as round environments do,", "torch", "raw", "torch"):
        kind = getattr(importlib.import_module(module), attribute)
    courses: Courses = kind(*given, **options)
    return courses


@checked_types
def check_options(backend: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a backend does not take, and say who takes them."""
    for name in options:
        if name not in OPTIONS:
            raise InvalidArgumentError(f"no backend takes `{name}`.{suggest(name, OPTIONS)}")
        if backend not in OPTIONS[name]:
            known = " or ".join(f'backend="{one}"' for one in OPTIONS[name])
            raise InvalidArgumentError(f"`{name}` is for {known} only, got backend={backend!r}")


__all__ = [
    "BACKENDS",
    "COURSES",
    "OPTIONS",
    "STORED",
    "Backend",
    "CheckedQuery",
    "StoredBackend",
    "check_options",
    "default_backend",
    "elsewhere",
    "make_backend",
    "open_courses",
]
