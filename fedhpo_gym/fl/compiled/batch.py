"""A batch of courses of a compiled model: each is a loop of its own, spread over threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.compiled.asynchronous import AsynchronousGroup
from fedhpo_gym.fl.compiled.group import CourseGroup
from fedhpo_gym.fl.compiled.problem import Problem
from fedhpo_gym.fl.engine import CourseBatch, Group, Key, refuse_precision
from fedhpo_gym.fl.models.compiled import CompiledModel
from fedhpo_gym.fl.packing import Course, Needs
from fedhpo_gym.fl.records import CourseState


class CompiledBatch(CourseBatch):
    """See `CourseBatch`. No course waits for another, whatever they differ in."""

    _model: type[CompiledModel]
    _groups: list[CourseGroup]

    def _open(self, device: str, precision: str) -> None:
        refuse_precision(precision, self._model)
        if device != "cpu":
            raise InvalidArgumentError(
                f"`device` must be 'cpu' for {self._model.__name__}, whose courses are too small "
                f"for anything else, got {device!r}"
            )
        self._problems: dict[Key, Problem] = {}

    def _stays(self, needed: list[Needs]) -> bool:
        return [new[:2] for new in needed] == [old[:2] for old in self._needs]

    def restart(self, positions: Sequence[int]) -> None:
        """See `CourseBatch.restart`."""
        chosen = set(positions)
        for group, row, position in self._places():
            if position in chosen:
                group.restart(row)
                self._last.pop(position, None)

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """See `CourseBatch.restore`."""
        self._last = {}
        for group, row, position in self._places():
            state = snapshot[position]
            if state is None:
                group.restart(row)
                continue
            group.put(row, state)
            if state.last is not None:
                self._last[position] = state.last

    def _arrange(self, courses: Sequence[Course], states: Sequence[CourseState | None]) -> None:
        self._courses = tuple(courses)
        self._needs = [self._needs_of(course) for course in courses]
        members = self._members()
        self._problems = {key: self._problem(key) for key in members}
        kind = AsynchronousGroup if self._algorithm.asynchronous else CourseGroup
        room = max(-(-len(courses) // threads()), 1)
        self._groups = []
        for key, positions in members.items():
            for start in range(0, len(positions), room):
                own = positions[start : start + room]
                chosen = [courses[position] for position in own]
                made = kind(own, chosen, self._problems[key], self._algorithm, self._horizon)
                self._groups.append(made)
        self.restore(states)

    def _problem(self, key: Key) -> Problem:
        if key in self._problems:
            return self._problems[key]
        seed, architecture = key
        federation = self._federations[seed]
        return Problem(federation, self._model.for_federation(federation, **dict(architecture)))

    def _know(self, federations: Mapping[int, Federation], used: Collection[int]) -> None:
        super()._know(federations, used)
        self._problems = {k: p for k, p in self._problems.items() if k[0] in used}

    def _places(self) -> Iterator[tuple[CourseGroup, int, int]]:
        """Yield the group and row of every course, and its position."""
        for group in self._groups:
            for row, position in enumerate(group.positions.tolist()):
                yield group, row, position

    def _for_each_group(self, work: Callable[[Group], None]) -> None:
        @np.errstate(over="ignore", invalid="ignore")  # such a course stops
        def quiet(group: Group) -> None:
            work(group)

        number = min(threads(), len(self._groups))
        if number <= 1:
            for group in self._groups:
                quiet(group)
            return
        with ThreadPoolExecutor(number) as pool:
            for _ in pool.map(quiet, self._groups):
                pass


def threads() -> int:
    """Return how many threads train courses: `OMP_NUM_THREADS`, or the processors there are."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
