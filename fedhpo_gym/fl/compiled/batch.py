"""A batch of courses of a compiled model: each is a loop of its own, spread over threads."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.compiled.asynchronous import AsynchronousGroup
from fedhpo_gym.fl.compiled.group import CourseGroup
from fedhpo_gym.fl.compiled.problem import Problem
from fedhpo_gym.fl.engine import CourseBatch, refuse_precision
from fedhpo_gym.fl.models.compiled import CompiledModel
from fedhpo_gym.fl.packing import Course, Needs
from fedhpo_gym.fl.records import WORST, CourseState, Curves, empty_feedback

Key = tuple[int, tuple[tuple[str, float], ...]]
"""Seed and architecture: courses that agree in both are a group."""


class CompiledBatch(CourseBatch):
    """See `CourseBatch`. No course waits for another, whatever they differ in."""

    _model: type[CompiledModel]

    def _open(self, device: str, precision: str) -> None:
        refuse_precision(precision, self._model)
        if device != "cpu":
            raise InvalidArgumentError(
                f"`device` must be 'cpu' for {self._model.__name__}, whose courses are too small "
                f"for anything else, got {device!r}"
            )
        self._problems: dict[Key, Problem] = {}
        self._groups: list[CourseGroup] = []

    def advance(
        self,
        rounds: int,
        progress: Callable[[], None] | None = None,
        evaluated: Collection[int] | None = None,
    ) -> Curves:
        """See `CourseBatch.advance`."""
        at = [r for r in range(1, rounds + 1) if evaluated is None or r in evaluated]
        shape = (len(self._courses), len(at), self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)
        size = (len(self._courses), rounds, self._clients)
        feedback = empty_feedback(size) if self._observe else None

        @np.errstate(over="ignore", invalid="ignore")  # such a course stops
        def train(group: CourseGroup) -> None:
            for index in range(rounds):
                group.step(feedback, index, self._local_metrics)
                if feedback is not None and group.seconds is not None:
                    feedback.seconds[group.positions, index] = group.seconds
                if index + 1 in at:
                    metrics[group.positions, at.index(index + 1)] = self._measured(group)
                if progress is not None:
                    progress()

        self._for_each_group(train)
        diverged_at = np.zeros(len(self._courses), dtype=np.int64)
        for group in self._groups:
            diverged_at[group.positions] = group.diverged_at
        return Curves(metrics, np.array(at, dtype=np.int64), diverged_at, feedback)

    def evaluate(self) -> NDArray[np.float32]:
        """See `CourseBatch.evaluate`."""
        shape = (len(self._courses), self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)

        def measure(group: CourseGroup) -> None:
            metrics[group.positions] = self._measured(group)

        self._for_each_group(measure)
        return metrics

    def sampled(self, rounds: int = 1) -> NDArray[np.bool_]:
        """See `CourseBatch.sampled`."""
        found = np.zeros((len(self._courses), self._clients), dtype=np.bool_)
        for group in self._groups:
            for ahead in range(rounds):
                found[group.positions] |= group.sampled(ahead)
        return found

    def _stays(self, needed: list[Needs]) -> bool:
        return [new[:2] for new in needed] == [old[:2] for old in self._needs]

    def _reconfigure(self, courses: Sequence[Course]) -> None:
        for group in self._groups:
            group.configure([courses[position] for position in group.positions.tolist()])

    def restart(self, positions: Sequence[int]) -> None:
        """See `CourseBatch.restart`."""
        chosen = set(positions)
        for group, row, position in self._places():
            if position in chosen:
                group.restart(row)
                self._last.pop(position, None)

    def snapshot(self) -> list[CourseState | None]:
        """See `CourseBatch.snapshot`."""
        states: list[CourseState | None] = [None] * len(self._courses)
        for group, row, position in self._places():
            states[position] = replace(group.get(row), last=self._last.get(position))
        return states

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
        members: dict[Key, list[int]] = defaultdict(list)
        for position, needed in enumerate(self._needs):
            members[needed.seed, needed.architecture].append(position)
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

    def _measured(self, group: CourseGroup) -> NDArray[np.float32]:
        """Measure; courses whose metrics are not finite diverge and keep their last ones."""
        metrics = group.measure()
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(metrics).all(axis=(1, 2, 3)))
        if not finite.all():
            group.freeze(~finite)
        for row, position in enumerate(group.positions.tolist()):
            if finite[row]:
                self._last[position] = metrics[row]
            else:
                metrics[row] = self._last.get(position, WORST)
        return metrics

    def _for_each_group(self, work: Callable[[CourseGroup], None]) -> None:
        number = min(threads(), len(self._groups))
        if number <= 1:
            for group in self._groups:
                work(group)
            return
        with ThreadPoolExecutor(number) as pool:
            for _ in pool.map(work, self._groups):
                pass


def threads() -> int:
    """Return how many threads train courses: `OMP_NUM_THREADS`, or the processors there are."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
