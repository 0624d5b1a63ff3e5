"""A batch of courses that torch trains: they advance in lockstep, packed into blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.asynchronous import AsynchronousLockstep
from fedhpo_gym.fl.buffers import Buffers
from fedhpo_gym.fl.dispatch import warn_unless_fixed
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.feedback import GroupEvaluation, OfClients
from fedhpo_gym.fl.lockstep import Lockstep
from fedhpo_gym.fl.models.base import TorchModel
from fedhpo_gym.fl.packing import Course, Group, Needs, pack
from fedhpo_gym.fl.precision import require_precision
from fedhpo_gym.fl.records import WORST, CourseState, Curves, empty_feedback
from fedhpo_gym.fl.stack import PreparedFederation, Stack, prepare, shapes


class LockstepBatch(CourseBatch):
    """See `CourseBatch`. Courses are packed into blocks of fixed shape."""

    _model: type[TorchModel]

    def _open(self, device: str, precision: str) -> None:
        require_precision(precision, self._model, device)
        warn_unless_fixed()
        self._precision = precision
        self._device = torch.device(device)
        self._shapes = shapes(self._federations, self._model)
        self._prepared: dict[tuple[object, ...], PreparedFederation] = {}
        self._of_clients: OfClients = {}
        self._parts: list[tuple[Lockstep, GroupEvaluation]] = []
        self._buffers = Buffers()

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
        diverged_at = np.zeros(len(self._courses), dtype=np.int64)
        size = (len(self._courses), rounds, self._clients)
        feedback = empty_feedback(size) if self._observe else None
        with one_thread():
            for lockstep, evaluation in self._parts:
                for index in range(1, rounds + 1):
                    observer = None
                    if feedback is not None:
                        observer = evaluation.observer(
                            lockstep, feedback, index - 1, self._local_metrics
                        )
                    lockstep.step(observer)
                    if feedback is not None and lockstep.seconds is not None:
                        _scatter(lockstep, lockstep.seconds, feedback.seconds[:, index - 1])
                    if index in at:
                        values = self._evaluate(lockstep, evaluation)
                        _scatter(lockstep, values, metrics[:, at.index(index)])
                    if progress is not None:
                        progress()
                _scatter(lockstep, lockstep.diverged_at, diverged_at)
        return Curves(metrics, np.array(at, dtype=np.int64), diverged_at, feedback)

    def evaluate(self) -> NDArray[np.float32]:
        """See `CourseBatch.evaluate`."""
        shape = (len(self._courses), self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)
        with one_thread():
            for lockstep, evaluation in self._parts:
                _scatter(lockstep, self._evaluate(lockstep, evaluation), metrics)
        return metrics

    def sampled(self, rounds: int = 1) -> NDArray[np.bool_]:
        """See `CourseBatch.sampled`."""
        sampled = np.zeros((len(self._courses), self._clients), dtype=np.bool_)
        for lockstep, _ in self._parts:
            for index in range(rounds):
                items = lockstep.items(index)
                at = lockstep.positions[items.block]
                row, slot = np.nonzero(at >= 0)
                sampled[at[row, slot], items.client[row]] = True
        return sampled

    def _stays(self, needed: list[Needs]) -> bool:
        return needed == self._needs

    def _reconfigure(self, courses: Sequence[Course]) -> None:
        for lockstep, _ in self._parts:
            lockstep.configure(courses)

    def restart(self, positions: Sequence[int]) -> None:
        """See `CourseBatch.restart`."""
        states = self.snapshot()
        for position in positions:
            states[position] = None
            self._last.pop(position, None)
        self._arrange(self._courses, states)

    def snapshot(self) -> list[CourseState | None]:
        """See `CourseBatch.snapshot`."""
        states: list[CourseState | None] = [None] * len(self._courses)
        for lockstep, block, slot, position in self._places():
            state = lockstep.get(block, slot)
            states[position] = replace(state, last=self._last.get(position))
        return states

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """See `CourseBatch.restore`."""
        self._arrange(self._courses, snapshot)

    def _arrange(self, courses: Sequence[Course], states: Sequence[CourseState | None]) -> None:
        rounds = [0 if state is None else state.round for state in states]
        self._needs = [self._needs_of(course) for course in courses]
        alone = self._algorithm.asynchronous  # what clients have begun is a course's own
        groups = pack(self._needs, rounds, 1 if alone else self._model.slots, self._shapes)
        kind = AsynchronousLockstep if alone else Lockstep
        self._courses = tuple(courses)
        self._parts = []
        self._last = {
            i: state.last for i, state in enumerate(states) if state and state.last is not None
        }
        for group in groups:
            stack = Stack([self._prepare(seed, group) for seed in group.seeds])
            lockstep = kind(
                group,
                courses,
                stack,
                self._algorithm,
                self._device,
                self._horizon,
                self._buffers,
            )
            evaluation = GroupEvaluation(stack, self._of_clients, self._device)
            self._parts.append((lockstep, evaluation))
        for lockstep, block, slot, position in self._places():
            state = states[position]
            if state is not None:
                lockstep.put(block, slot, state)

    def _know(self, federations: Mapping[int, Federation], used: Collection[int]) -> None:
        super()._know(federations, used)
        self._shapes = shapes(self._federations, self._model)
        self._prepared = {k: part for k, part in self._prepared.items() if k[0] in used}
        parts = set(self._prepared.values())
        self._of_clients = {k: v for k, v in self._of_clients.items() if k[0] in parts}

    def _prepare(self, seed: int, group: Group) -> PreparedFederation:
        key = seed, group.architecture
        if key not in self._prepared:
            self._prepared[key] = prepare(
                self._federations[seed],
                self._model,
                group.architecture,
                self._device,
                self._precision,
            )
        return self._prepared[key]

    def _places(self) -> Iterator[tuple[Lockstep, int, int, int]]:
        """Yield the lockstep, block and slot of every course, and its position."""
        for lockstep, _ in self._parts:
            for index, block in enumerate(lockstep.group.blocks):
                for slot, position in enumerate(block.courses.tolist()):
                    yield lockstep, index, slot, position

    def _evaluate(self, lockstep: Lockstep, evaluation: GroupEvaluation) -> NDArray[np.float32]:
        """Evaluate; courses whose metrics are not finite diverge and keep their last ones."""
        metrics = evaluation(lockstep)
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(metrics).all(axis=(2, 3, 4)))
        if not finite.all():
            lockstep.freeze(~finite)
        for index, block in enumerate(lockstep.group.blocks):
            for slot, position in enumerate(block.courses.tolist()):
                if finite[index, slot]:
                    self._last[position] = metrics[index, slot]
                else:
                    metrics[index, slot] = self._last.get(position, WORST)
        return metrics


def _scatter(lockstep: Lockstep, values: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    """Copy (blocks, slots, ...) values to the courses they belong to."""
    used = lockstep.positions >= 0
    out[lockstep.positions[used]] = values[used]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: small products gain nothing from more, and rounding stays fixed.

    On a graphics processor, float32 means float32, and the same products are chosen each time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    try:
        with torch.no_grad(), exact:
            yield
    finally:
        torch.set_num_threads(before)
