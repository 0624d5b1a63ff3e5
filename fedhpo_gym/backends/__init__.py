"""Open backends, the sources of numbers behind environments, by name.

`make_backend` serves trial environments, which evaluate configurations; `open_courses` serves round
environments, which train courses step by step. `default_backend` chooses a backend where the user
names none: stored numbers if there are any, real training otherwise. Modules are imported when
their backend is first used, because only some of them need torch. If a setting of the algorithm is
tuned, `TunedNumbers` joins the stored numbers of several of its values into one problem.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Backend, CheckedQuery, Courses, StoredBackend
from fedhpo_gym.core.checks import coerce, coerce_arguments, validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    require_known,
    require_optional,
    suggest,
)
from fedhpo_gym.core.files import read_json
from fedhpo_gym.core.identity import BUILT_TABLE, Identity
from fedhpo_gym.data.catalogue import REGISTERED, load_dataset
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluations
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.catalogue import (
    find_stored,
    has_sample,
    has_table,
    list_names,
    require_import,
)
from fedhpo_gym.stored.table import SUFFIX
from fedhpo_gym.tasks import Task, versions_of

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "tabular": "fedhpo_gym.backends.tabular:open_tabular",
        "surrogate": "fedhpo_gym.backends.surrogate:SurrogateModel",
        "raw": "fedhpo_gym.backends.raw:Raw",
        "federatedscope": "fedhpo_gym.backends.federatedscope.backend:FederatedScope",
        "function": "fedhpo_gym.backends.function:FunctionBackend",
    }
)
"""Backends by name; a module is imported when its backend is first used."""

COURSES: Mapping[str, str] = {
    "raw": "fedhpo_gym.backends.engine_courses:RunningCourses",
    "federatedscope": "fedhpo_gym.backends.federatedscope.courses:FederatedScopeCourses",
    "quadratic": "fedhpo_gym.backends.quadratic:QuadraticCourses",
}
"""Classes that train courses between the steps of round environments, by backend."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "device": ("raw",),
    "source": ("federatedscope",),
    "interpreter": ("federatedscope",),
    "time_limit_s": ("federatedscope",),
    "own_data": ("federatedscope",),
}
"""Options that environments pass on -> the backends that accept them."""


def _has_table(task: Task) -> bool:
    if task.tuned:
        return len(stored_values("tabular", task, _has_table)) >= FEWEST
    return has_table(task.table_name)


def _has_exact(task: Task) -> bool:
    return _has_table(task) or has_sample(task.table_name)


def _has_surrogate(task: Task) -> bool:
    if task.tuned:
        return len(stored_values("surrogate", task, _has_surrogate)) >= FEWEST
    from fedhpo_gym.stored.surrogate import with_surrogate  # a table needs none of them

    return bool(with_surrogate(task.surrogate_identities))


STORED: Mapping[str, Callable[[Task], bool]] = {"tabular": _has_exact, "surrogate": _has_surrogate}
"""Backends with stored numbers -> the function that returns whether a task has such numbers."""


@validate_call
def default_backend(task: Task) -> str:
    """Return the backend of a task if none is named: table, surrogate, pool, else `unstored`."""
    if _has_table(task):
        return "tabular"
    # A surrogate with an error that is too large is used only where its backend is named.
    if _has_surrogate(task) and not _is_poor(task):
        return "surrogate"
    return "tabular" if _has_exact(task) else task.unstored


def _is_poor(task: Task) -> bool:
    trains = task.unstored == "raw" and not task.tuned
    return trains and bool(make_backend("surrogate", task).why_refused("val_loss"))


@validate_call
def make_backend(name: str, task: Task, **options: Any) -> Backend:
    """Open a backend, "tabular", "surrogate", "raw" or "federatedscope", for a task.

    Raises:
        UnknownNameError: there is no such backend.
        MissingDataError: there are no stored numbers of the task.
        MissingDependencyError: the backend trains, and torch is not installed.
        InvalidArgumentError: the backend does not support the task, an option or its value.
    """
    require_known("backend", coerce("backend", name, str), BACKENDS)
    if task.asynchronous and name in STORED:
        raise InvalidArgumentError(
            f"`backend` must be 'raw' for {task.algorithm!r}, got {name!r}: asynchronous training "
            "depends on the clock of the system model, which stored numbers do not contain"
        )
    if task.table != BUILT_TABLE and name not in STORED:
        raise InvalidArgumentError(
            f"`backend` must be one of {sorted(STORED)} with table={task.table!r}, whose numbers "
            f"are stored, got {name!r}; only {BUILT_TABLE!r} trains"
        )
    require_import(task)
    is_pool = name == "tabular" and has_sample(task.table_name)
    if task.tuned and name in STORED and not is_pool:
        is_stored = _has_table if name == "tabular" else STORED[name]
        return open_tuned(name, task, lambda one: make_backend(name, one, **options), is_stored)
    module, _, attribute = BACKENDS[name].partition(":")
    with require_optional(f'backend="{name}"', "torch", "raw", "torch"):
        kind = getattr(importlib.import_module(module), attribute)
    arguments = coerce_arguments(f'backend="{name}"', kind, options, ["task"])
    try:
        backend: Backend = kind(task, **arguments)
    except MissingDataError as error:
        lacks = name in STORED and not STORED[name](task)
        if lacks and (here := [f"backend={x!r}" for x in STORED if x != name and STORED[x](task)]):
            lack = str(error).partition(";")[0]
            raise MissingDataError(f"{lack}; use {here[0]}, or train: backend='raw'") from error
        others = ids_with_stored_data(task) if lacks else []
        if not others:
            raise
        raise MissingDataError(f"{error}; or take another version: {', '.join(others)}") from error
    if task.dataset in REGISTERED:
        _require_data(backend)
    return backend


def _require_data(backend: Backend) -> None:
    """Check that stored numbers were computed from the current version of a user's data."""
    task, stored_fingerprint = backend.task, backend.card.get("data_fingerprint")
    if (
        stored_fingerprint is not None
        and stored_fingerprint != load_dataset(task.dataset).fingerprint
    ):
        raise DamagedDataError(
            f"the numbers stored for {task.id} were computed from other data, or other encodings, "
            f"than {task.dataset} has now; raise the version of the task, or build it again"
        )


@validate_call
def ids_with_stored_data(task: Task) -> list[str]:
    """Return other versions of a task whose same variant has stored numbers, and their backends."""
    version_defaults = ("preprocessing", "precision")  # their defaults differ between versions
    names = (*(name for name in task.options if name not in version_defaults), "settings")
    changes = {name: getattr(task, name) for name in names}
    versions = [version for version in versions_of(task.name) if version.version != task.version]
    return [
        f"{version.id} (backend {name!r})"
        for version in versions
        for name, has_numbers in STORED.items()
        if has_numbers(version.variant(**changes))
    ]


@validate_call
def open_courses(name: str, *given: Any, **options: Any) -> Courses:
    """Create courses of a backend of `COURSES` at round 0, which are then trained in steps."""
    require_known("backend of courses", coerce("backend", name, str), COURSES)
    module, _, attribute = COURSES[name].partition(":")
    with require_optional("really training, as round environments do,", "torch", "raw", "torch"):
        kind = getattr(importlib.import_module(module), attribute)
    courses: Courses = kind(*given, **options)
    return courses


@validate_call
def check_options(backend: str, options: Mapping[str, Any]) -> None:
    """Reject options that a backend does not accept; the message names the backends that do."""
    for name in options:
        if name not in OPTIONS:
            raise InvalidArgumentError(f"no backend accepts `{name}`.{suggest(name, OPTIONS)}")
        if backend not in OPTIONS[name]:
            takers = " or ".join(f'backend="{taker}"' for taker in OPTIONS[name])
            raise InvalidArgumentError(f"`{name}` is for {takers} only, got backend={backend!r}")


ENDINGS: Mapping[str, str] = {"tabular": ".table.json", "surrogate": ".surrogate.json"}
"""Suffixes of card files, by backend."""
FEWEST = 2
"""Fewest values of a tuned setting: one value leaves nothing to search."""


class TunedNumbers(Backend):
    """The stored numbers of a tuned setting; only values that have numbers are legal.

    It holds one backend per value and adds the setting as a dimension with these values.
    """

    def __init__(self, name: str, task: Task, parts: Mapping[float, Backend]) -> None:
        [tuned] = task.tuned
        first = next(iter(parts.values()))
        values = tuple(parts)
        low, high = values[0], values[-1]
        dimension = replace(tuned, low=low, high=high, values=values, bins=None)
        space = SearchSpace((*first.space.dimensions, dimension))
        super().__init__(task, first.seed, space, first.fidelity_space)
        self.name = name  # type: ignore[misc]  # of the joined backends
        self._tuned, self._parts = tuned.name, dict(parts)
        self._first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(make_backend, self.name, self.task, seed=self.seed), ()

    @property
    def fingerprint(self) -> str:
        text = "\n".join(
            f"{value!r} {backend.fingerprint}" for value, backend in self._parts.items()
        )
        return f"{self.name}-tuned-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return self._first.num_samples

    @property
    def lacks(self) -> Mapping[str, str]:
        return self._first.lacks

    def why_refused(self, objective: str) -> str:
        return next(filter(None, (p.why_refused(objective) for p in self._parts.values())), "")

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        return self._first.check_fidelity(values)

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        tuned_values = np.asarray(columns[self._tuned], dtype=np.float64)
        other_columns = {name: column for name, column in columns.items() if name != self._tuned}
        order, answers = [], []
        for value, backend in self._parts.items():
            rows = np.flatnonzero(tuned_values == value)
            if rows.size:
                order.append(rows)
                selected = {name: column[rows] for name, column in other_columns.items()}
                answers.append(backend.look_up(selected, reads))
        back = np.argsort(np.concatenate(order))  # (B,) from the order by value to that of queries

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(answer, name) for answer in answers])[back]

        known = all(answer.find_current for answer in answers)
        return Evaluations(
            joined("best"),
            answers[0].num_samples,
            joined("best_round"),
            joined("diverged"),
            answers[0].seeds,
            columns,
            (lambda: joined("current")) if known else None,
        )


class TunedTables(TunedNumbers, StoredBackend):
    """`TunedNumbers` of tables: evaluating all cells at once is cheap."""


def open_tuned(
    name: str, task: Task, open_one: Callable[[Task], Any], has_one: Callable[[Task], bool]
) -> TunedNumbers:
    """Open the stored numbers of a task with a tuned setting."""
    values = stored_values(name, task, has_one)
    parts = {value: open_one(at_value(task, value)) for value in values}
    first = next(iter(parts.values()), None)
    answered = [
        (backend.space, backend.fidelity_space, backend.seeds) for backend in parts.values()
    ]
    if first is None or len(parts) < FEWEST or answered != answered[:1] * len(parts):
        pools = [
            f"{setting}=[{low:g}, {high:g}] with algorithm={dict(identity.options)['algorithm']!r}"
            for identity in _identities(f"{SUFFIX}.json", task.name)
            for setting, low, high in identity.tuned
        ]
        raise MissingDataError(
            f"`tune` needs a pool of the same range, or stored numbers of at least {FEWEST} values "
            f"of one setting with the same fidelities; backend={name!r} has {values} of "
            f"{[d.name for d in task.tuned]} in that range for {task.algorithm} on {task.id}, and "
            f"{'pools of ' * bool(pools)}{', '.join(pools) or 'no pool'}. Build more "
            '(`fedhpo-gym build --setting`), or train: backend="raw" tunes any setting'
        )
    kind = TunedTables if isinstance(first, StoredBackend) else TunedNumbers
    return kind(name, task, parts)


def stored_values(name: str, task: Task, has_one: Callable[[Task], bool]) -> list[float]:
    """Return the sorted values of the tuned setting, in its range, that have stored numbers."""
    if len(task.tuned) != 1:
        return []
    [tuned] = task.tuned
    identities = _identities(ENDINGS[name], task.name)
    stored = (dict(identity.settings).get(tuned.name) for identity in identities)
    values = {value for value in stored if value is not None and tuned.low <= value <= tuned.high}
    return sorted(value for value in values if has_one(at_value(task, value)))


def at_value(task: Task, value: float) -> Task:
    """Return the task with its tuned setting fixed."""
    [tuned] = task.tuned
    return task.variant(tuned=()).fix({tuned.name: value})


def _identities(suffix: str, task: str) -> Iterator[Identity]:
    """Yield the identities of the cards of a task; damaged cards are left out."""
    for card in filter(None, (find_stored(stem, suffix) for stem in list_names(suffix))):
        # Opening a damaged card reports the error.
        with suppress(OSError, ValueError, TypeError):
            identity = Identity.from_card(read_json(card))
            if identity.task == task:
                yield identity


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
    "ids_with_stored_data",
    "make_backend",
    "open_courses",
]
