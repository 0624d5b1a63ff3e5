"""The training engine: a batch of independent federated courses that advance together.

`backends/training.py` and `backends/engine_courses.py` create a `CourseBatch` for the courses of a
query or of a round environment. It sorts courses into groups, one per seed and architecture,
because courses of a group share their data and the shape of their arrays. Compiled code or torch
trains each group. A course has the same bits alone and in any batch, so that grouping is only a
matter of speed.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms.base import Algorithm
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl.asynchronous import AsynchronousGroup
from fedhpo_gym.fl.course import WORST, BatchKey, Course, CourseState, batch_key
from fedhpo_gym.fl.course import Curves as Curves
from fedhpo_gym.fl.group import Group
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.fl.trainer import Trainer, Trainers

Key = tuple[int, tuple[tuple[str, float], ...]]
"""Seed and architecture: courses with the same key can be in one group."""
KEPT_BYTES = 2**26
"""Bytes of data in unused trainers that are cached, in case a course returns to them."""


class CourseBatch:
    """Federated courses that advance together, each with the same bits alone and in any batch."""

    def __init__(
        self,
        federations: Mapping[int, Federation],
        model: type[Model],
        algorithm: Algorithm,
        courses: Sequence[Course],
        device: str = "cpu",
        horizon: int = 1,
        observe: bool = False,
        local_metrics: bool = True,
        precision: str = "float32",
    ) -> None:
        self._federations = dict(federations)
        self._model = model
        self._algorithm = algorithm
        self._trainers = _trainers(model, algorithm, device, precision)
        self._known: dict[Key, Trainer] = {}
        self._horizon = horizon
        self._observe = observe
        self._local_metrics = local_metrics
        self._clients = next(iter(federations.values())).num_clients
        self._arrange(courses, [None] * len(courses))

    def _arrange(self, courses: Sequence[Course], states: Sequence[CourseState | None]) -> None:
        """Sort courses into groups; each starts from its state, or at round 0 if that is None."""
        self._courses = tuple(courses)
        self._needs = [self._needs_of(course) for course in courses]
        members: dict[Key, list[int]] = defaultdict(list)
        for position, needed in enumerate(self._needs):
            members[needed.seed, needed.architecture].append(position)
        self._known = self._known_with(members)
        kind = AsynchronousGroup if self._algorithm.asynchronous else Group
        room = self._trainers.room(len(courses))
        self._groups = [
            kind(
                group_positions,
                [courses[position] for position in group_positions],
                [self._needs[position] for position in group_positions],
                self._known[key],
                self._algorithm,
                self._horizon,
            )
            for key, positions in members.items()
            for group_positions in (positions[i : i + room] for i in range(0, len(positions), room))
        ]
        self._last: dict[int, NDArray[np.float32]] = {}
        for group, row, position in self._places():
            self._put(group, row, position, states[position])

    def _known_with(self, keys: Collection[Key]) -> dict[Key, Trainer]:
        """Return the trainers of some keys, followed by recent ones within `KEPT_BYTES`."""
        trainers: dict[Key, Trainer] = {}
        for key in keys:
            federation, trainer = self._federations[key[0]], self._known.get(key)
            if trainer is None or trainer.federation is not federation:
                trainer = self._trainers.trainer(federation, key[1])
            trainers[key] = trainer
        room: float = KEPT_BYTES
        for key, trainer in self._known.items():
            if key not in trainers and (room := room - trainer.data_bytes) >= 0:
                trainers[key] = trainer
        return trainers

    def _places(self) -> Iterator[tuple[Group, int, int]]:
        """Yield the group and row of every course, and its position."""
        for group in self._groups:
            for row, position in enumerate(group.positions.tolist()):
                yield group, row, position

    def _put(self, group: Group, row: int, position: int, state: CourseState | None) -> None:
        """Restore the state of a new course; None leaves it at round 0."""
        if state is not None:
            group.put(row, state)
            if state.last is not None:
                self._last[position] = state.last

    @property
    def courses(self) -> tuple[Course, ...]:
        """The courses with their current configurations."""
        return self._courses

    def advance(
        self,
        rounds: int,
        progress: Callable[[], None] | None = None,
        evaluated: Collection[int] | None = None,
    ) -> Curves:
        """Train every course for some more rounds.

        Args:
            rounds: number of rounds.
            progress: called after each round of each group.
            evaluated: rounds after which models are measured, from 1; None: all.
        """
        is_evaluated = np.array([evaluated is None or r in evaluated for r in range(1, rounds + 1)])
        at = np.flatnonzero(is_evaluated) + 1
        shape = (len(self.courses), len(at), self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)
        size = len(self.courses), rounds, self._clients
        feedback = ClientFeedback.empty(*size) if self._observe else None

        def train(group: Group) -> None:
            rounds_at_once = max(group.at_once(self._observe and self._local_metrics), 1)
            num_measured = 0
            for index in range(0, rounds, rounds_at_once):
                flags = is_evaluated[index : index + rounds_at_once]
                for group_metrics in group.run(feedback, index, flags, self._local_metrics):
                    metrics[group.positions, num_measured] = self._finite(group, group_metrics)
                    num_measured += 1
                if progress is not None:
                    for _ in flags:
                        progress()

        self._trainers.for_each(self._groups, train)
        diverged_at = np.zeros(len(self.courses), dtype=np.int64)
        for group in self._groups:
            diverged_at[group.positions] = group.diverged_at
        return Curves(metrics, at, diverged_at, feedback)

    def evaluate(self) -> NDArray[np.float32]:
        """Return (courses, clients, splits, metrics) of the current models."""
        shape = (len(self.courses), self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)

        def measure(group: Group) -> None:
            metrics[group.positions] = self._finite(group, group.measure())

        self._trainers.for_each(self._groups, measure)
        return metrics

    def _finite(self, group: Group, metrics: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return metrics of a group; non-finite metrics are replaced by the last finite ones."""
        finite = np.asarray(np.isfinite(metrics).reshape(len(metrics), -1).all(axis=1))
        for row, position in enumerate(group.positions.tolist()):
            if finite[row]:
                self._last[position] = metrics[row]
            else:
                metrics[row] = self._last.get(position, WORST)
        return metrics

    def sampled(self, rounds: int = 1) -> NDArray[np.bool_]:
        """Return (courses, clients): whether a client trains in at least one of the next rounds."""
        found = np.zeros((len(self.courses), self._clients), dtype=np.bool_)
        for group in self._groups:
            for ahead in range(rounds):
                found[group.positions] |= group.sampled(ahead)
        return found

    def configure(
        self, courses: Sequence[Course], federations: Mapping[int, Federation] | None = None
    ) -> None:
        """Change configurations; a course with another seed, shape or data restarts at round 0."""
        if len(courses) != len(self.courses):
            raise InvalidArgumentError(
                f"`courses` must hold {len(self.courses)} courses, got {len(courses)}"
            )
        if federations is not None:
            all_federations = {**self._federations, **federations}  # unused ones are dropped below
            self._federations = {course.seed: all_federations[course.seed] for course in courses}
        needed = [self._needs_of(course) for course in courses]
        same = [
            new[:2] == old[:2]
            and self._known[old.seed, old.architecture].federation is self._federations[new.seed]
            for new, old in zip(needed, self._needs, strict=True)
        ]
        if not all(same):
            states = zip(self.snapshot(), same, strict=True)
            self._arrange(courses, [state if stays else None for state, stays in states])
            return
        self._courses, self._needs = tuple(courses), needed
        for group in self._groups:
            places = group.positions.tolist()
            group.configure([courses[p] for p in places], [needed[p] for p in places])

    def _needs_of(self, course: Course) -> BatchKey:
        return batch_key(course, self._clients, self._model.architecture)

    def restart(self, positions: Collection[int]) -> None:
        """Set some courses back to round 0."""
        for group in self._groups:
            if len(rows := np.flatnonzero(np.isin(group.positions, list(positions)))):
                group.restart(rows.tolist())
        for position in positions:
            self._last.pop(position, None)

    def snapshot(self) -> list[CourseState | None]:
        """Return the state of every course, which can be restored any number of times."""
        states: list[CourseState | None] = [None] * len(self.courses)
        for group, row, position in self._places():
            states[position] = replace(group.get(row), last=self._last.get(position))
        return states

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """Restore a snapshot of this batch."""
        self._last = {}
        for group, row, position in self._places():
            if snapshot[position] is None:
                group.restart([row])
            self._put(group, row, position, snapshot[position])


def _trainers(model: Any, algorithm: Algorithm, device: str, precision: str) -> Trainers:
    """Return the factory of trainers for a model: compiled code or torch."""
    if model.compiled:
        with require_optional(f"training {model.__name__}", "numba", "compiled", "numba"):
            from fedhpo_gym.fl.compiled.trainer import CompiledTrainers

            return CompiledTrainers(model, algorithm, device, precision)
    with require_optional(f"training {model.__name__}", "torch", "torch", "torch"):
        from fedhpo_gym.fl.torch_trainer import TorchTrainers

        return TorchTrainers(model, algorithm, device, precision)
