"""The backend that trains configurations with the engine of this package.

`make_backend("raw", task)` opens it for trial environments, for the builder of meta-data and for
checks of the command line. The courses of a query, one per seed, train in one batch with those of
the other queries, since a batch costs little more than a single course. Their states are cached: a
later query with more rounds continues the course, and one with fewer rounds reads its learning
curve.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Backend, CheckedQuery
from fedhpo_gym.backends.training import CourseState, Curves
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    METRICS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
    evaluation_from_curves,
)
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

MAX_KEPT = 32
"""Configurations whose courses are cached."""
MAX_TOGETHER = 256
"""Configurations in one batch: more are not faster, and their curves need memory."""
MAX_NUMBERS = 2**25
"""Parameters of the courses in a batch, and of those in the cache. Large models gain nothing from
batches, and the state of a course is several times as large as its parameters."""


class Raw(Backend):
    """Trains the courses of configurations, one per seed, as one batch.

    Courses are cached: more rounds continue a cached course, fewer are read off its curve.
    """

    name = "raw"

    def __init__(self, task: Task, seed: int | None = None, device: str = "cpu") -> None:
        super().__init__(task, seed, task.space, task.asked_fidelity_space())
        self._device = device
        self._samples = np.stack(
            [training.task_federation(task, s).num_samples for s in self.seeds]
        )
        training.require_device(task, self.seeds[0], device)
        self._kept: OrderedDict[_Key, _CachedCourses] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments = super().__reduce__()
        return kind, (*arguments, self._device)

    @property
    def fingerprint(self) -> str:
        return training.fingerprint(self.task)

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return self._samples

    @property
    def former_engines(self) -> dict[str, tuple[int, int]]:
        """Fingerprints of earlier engines, with their version and the present one."""
        return training.former_engines(self.task)

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        """Return the evaluations of B queries; they train together."""
        parts = self._portions(self.queries(columns))
        return Evaluations.stack([answer for portion in parts for answer in self._answers(portion)])

    def _portions(self, queries: Sequence[CheckedQuery]) -> Iterator[list[CheckedQuery]]:
        """Yield queries that may train together, in order."""
        portion: list[CheckedQuery] = []
        used = 0
        for query in queries:
            size = self._size(query[0])
            if portion and (used + size > MAX_NUMBERS or len(portion) == MAX_TOGETHER):
                yield portion
                portion, used = [], 0
            portion.append(query)
            used += size
        if portion:
            yield portion

    def _size(self, configuration: Mapping[str, Value]) -> int:
        """Return the number of parameters of the courses of a configuration."""
        models = 1 + 2 * self.task.num_clients if self.task.asynchronous else 1  # models in flight
        return len(self.seeds) * models * self.task.parameters_of(configuration)

    def _answers(self, queries: Sequence[tuple[Mapping[str, Value], Fidelity]]) -> list[Evaluation]:
        requests: dict[_Key, _Request] = {}
        keys: list[_Key] = []
        for configuration, fidelity in queries:
            key: _Key = (*configuration.items(), fidelity.client_sample_rate)
            keys.append(key)
            rounds = max(fidelity.round, requests[key].rounds if key in requests else 0)
            requests[key] = _Request(configuration, fidelity.client_sample_rate, rounds)
        trained = self._trained(requests)
        for key in requests:
            self._kept[key] = trained[key]
            self._kept.move_to_end(key)
        self._forget()
        answers = []
        for key, (_, fidelity) in zip(keys, queries, strict=True):
            curves = trained[key].curves
            cached = (curves.metrics, curves.rounds, curves.diverged_at)
            answers.append(evaluation_from_curves(*cached, self._samples, self.seeds, fidelity))
        return answers

    def _forget(self) -> None:
        """Keep only the latest courses: as many as the limits allow, and at least one."""
        used = 0
        for index, (key, courses) in enumerate(reversed(list(self._kept.items()))):
            used += courses.size
            if index and (used > MAX_NUMBERS or index >= MAX_KEPT):
                del self._kept[key]

    def _trained(self, requests: Mapping[_Key, _Request]) -> dict[_Key, _CachedCourses]:
        """Return courses with the requested rounds; those after the same round train together."""
        courses = {key: self._kept.get(key, self._untrained) for key in requests}
        waiting = [key for key, want in requests.items() if want.rounds > courses[key].rounds]
        while waiting:
            done = courses[waiting[0]].rounds
            together = [key for key in waiting if courses[key].rounds == done]
            rounds = min(requests[key].rounds for key in together)
            cached = self._advanced(
                [requests[key] for key in together], [courses[key] for key in together], rounds
            )
            courses.update(zip(together, cached, strict=True))
            waiting = [key for key in waiting if requests[key].rounds > courses[key].rounds]
        return courses

    def _advanced(
        self, requests: Sequence[_Request], cached: Sequence[_CachedCourses], rounds: int
    ) -> list[_CachedCourses]:
        """Train courses that all have the same number of rounds up to `rounds`."""
        done = cached[0].rounds
        courses = [
            training.make_course(self.task, request.configuration, request.client_sample_rate, seed)
            for request in requests
            for seed in self.seeds
        ]
        batch = training.make_batch(self.task, courses, self._device)
        if done:
            batch.restore([state for request in cached for state in request.states])
        evaluated = [r - done for r in self.task.evaluated_rounds if r > done]
        more = batch.advance(rounds - done, evaluated=evaluated)
        states = batch.snapshot()
        advanced = []
        for index, before in enumerate(cached):
            own = slice(index * len(self.seeds), (index + 1) * len(self.seeds))
            curves = Curves(
                np.concatenate([before.curves.metrics, more.metrics[own]], axis=1),
                np.concatenate([before.curves.rounds, more.rounds + done]),
                more.diverged_at[own].copy(),
            )
            size = self._size(requests[index].configuration)
            advanced.append(_CachedCourses(states[own], curves, rounds, size))
        return advanced

    @cached_property
    def _untrained(self) -> _CachedCourses:
        seeds, clients, splits = self._samples.shape
        # (seeds, rounds, clients, splits, metrics) with no rounds yet
        metrics = np.empty((seeds, 0, clients, splits, len(METRICS)), dtype=np.float32)
        curves = Curves(metrics, np.empty(0, dtype=np.int64), np.zeros(seeds, dtype=np.int64))
        return _CachedCourses([None] * seeds, curves, 0, 0)


_Key = tuple[object, ...]


@dataclass(frozen=True)
class _Request:
    """The training that the courses of a configuration need."""

    configuration: Mapping[str, Value]
    client_sample_rate: float
    rounds: int


@dataclass(frozen=True, eq=False)
class _CachedCourses:
    """The courses of a configuration, one per seed, after some rounds, with `size` parameters."""

    states: Sequence[CourseState | None]
    curves: Curves
    rounds: int
    size: int
