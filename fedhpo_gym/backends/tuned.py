"""Stored numbers of several values of a setting, as one problem in which it is searched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Backend, StoredBackend
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.core.files import read_json
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluations
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.catalogue import find, list_names
from fedhpo_gym.tasks import Task

ENDINGS: Mapping[str, str] = {"tabular": ".table.json", "surrogate": ".surrogate.json"}
"""How the names of cards end, by backend."""
FEWEST = 2
"""Values without which there is nothing to search."""


class TunedNumbers(Backend):
    """Answers from the stored numbers of a tuned setting; only values with numbers are legal."""

    def __init__(self, name: str, task: Task, parts: Mapping[float, Backend]) -> None:
        [tuned] = task.tuned
        first = next(iter(parts.values()))
        values = tuple(parts)
        low, high = values[0], values[-1]
        dimension = replace(tuned, low=low, high=high, values=values, bins=None)
        space = SearchSpace((*first.space.dimensions, dimension))
        super().__init__(task, first.seed, space, first.fidelity_space)
        self.name = name  # type: ignore[misc]  # that of its parts
        self._tuned, self._parts = tuned.name, dict(parts)
        self._first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.name, self.task, self.seed)

    @property
    def fingerprint(self) -> str:
        words = "\n".join(f"{value!r} {one.fingerprint}" for value, one in self._parts.items())
        return f"{self.name}-tuned-sha256:{hashlib.sha256(words.encode()).hexdigest()}"

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
        chosen = np.asarray(columns[self._tuned], dtype=np.float64)
        rest = {name: column for name, column in columns.items() if name != self._tuned}
        order, found = [], []
        for value, part in self._parts.items():
            rows = np.flatnonzero(chosen == value)
            if rows.size:
                order.append(rows)
                some = {name: column[rows] for name, column in rest.items()}
                found.append(part.look_up(some, reads))
        back = np.argsort(np.concatenate(order))

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(one, name) for one in found])[back]

        known = all(one.find_current for one in found)
        return Evaluations(
            joined("best"),
            found[0].num_samples,
            joined("best_round"),
            joined("diverged"),
            found[0].seeds,
            columns,
            (lambda: joined("current")) if known else None,
        )


class TunedTables(TunedNumbers, StoredBackend):
    """`TunedNumbers` of tables: asking for all answers at once is cheap."""


def open_tuned(
    name: str, task: Task, open_one: Callable[[Task], Any], has_one: Callable[[Task], bool]
) -> TunedNumbers:
    """Open the stored numbers of a task one of whose settings is tuned."""
    values = stored_values(name, task, has_one)
    parts = {value: open_one(at_value(task, value)) for value in values}
    first = next(iter(parts.values()), None)
    answered = [(one.space, one.fidelity_space, one.seeds) for one in parts.values()]
    if first is None or len(parts) < FEWEST or answered != answered[:1] * len(parts):
        raise MissingDataError(
            f"`tune` needs stored numbers of at least {FEWEST} values of one setting, with the "
            f"same fidelities; backend={name!r} has {values} of "
            f"{[d.name for d in task.tuned]} in that range for {task.algorithm} on {task.id}. "
            'Build more (`fedhpo-gym build --setting`), or train: backend="raw" tunes any setting'
        )
    kind = TunedTables if isinstance(first, StoredBackend) else TunedNumbers
    return kind(name, task, parts)


def stored_values(name: str, task: Task, has_one: Callable[[Task], bool]) -> list[float]:
    """Return the values of the tuned setting, in its range, that have stored numbers; rising."""
    if len(task.tuned) != 1:
        return []
    [tuned] = task.tuned
    cards = (find(stem, ENDINGS[name]) for stem in list_names(ENDINGS[name]))
    said = (_settings_on(card, task.name).get(tuned.name) for card in cards if card is not None)
    values = {value for value in said if value is not None and tuned.low <= value <= tuned.high}
    return sorted(value for value in values if has_one(at_value(task, value)))


def at_value(task: Task, value: float) -> Task:
    """Return the task with its tuned setting fixed."""
    [tuned] = task.tuned
    return task.variant(tuned=()).fix({tuned.name: value})


def _settings_on(card: Path, task: str) -> dict[str, float]:
    """Return the settings of a card of a task; nothing of one that is damaged or another's."""
    try:
        identity = Identity.from_card(read_json(card))
    except (OSError, ValueError, TypeError):  # whoever opens it says what is wrong
        return {}
    return dict(identity.settings) if identity.task == task else {}


def _again(name: str, task: Task, seed: int | None) -> Any:
    from fedhpo_gym.backends import make_backend

    return make_backend(name, task, seed=seed)
