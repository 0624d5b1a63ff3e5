"""A batch of courses that torch trains: they advance in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.asynchronous import AsynchronousLockstep
from fedhpo_gym.fl.buffers import Buffers
from fedhpo_gym.fl.dispatch import warn_unless_fixed
from fedhpo_gym.fl.engine import CourseBatch, Group, Key
from fedhpo_gym.fl.feedback import GroupEvaluation
from fedhpo_gym.fl.lockstep import Lockstep
from fedhpo_gym.fl.models.base import TorchModel
from fedhpo_gym.fl.packing import Course, Needs
from fedhpo_gym.fl.precision import require_precision
from fedhpo_gym.fl.prepared import PreparedFederation
from fedhpo_gym.fl.records import CourseState


class LockstepBatch(CourseBatch):
    """See `CourseBatch`. Courses of one federation and model shape train as one."""

    _model: type[TorchModel]
    _groups: list[Lockstep]

    def _open(self, device: str, precision: str) -> None:
        require_precision(precision, self._model, device)
        warn_unless_fixed()
        self._precision = precision
        self._device = torch.device(device)
        self._evaluations: dict[Key, GroupEvaluation] = {}
        self._buffers = Buffers()

    def _for_each_group(self, work: Callable[[Group], None]) -> None:
        with one_thread():
            for group in self._groups:
                work(group)

    def _stays(self, needed: list[Needs]) -> bool:
        return needed == self._needs

    def restart(self, positions: Sequence[int]) -> None:
        """See `CourseBatch.restart`."""
        states = self.snapshot()
        for position in positions:
            states[position] = None
            self._last.pop(position, None)
        self._arrange(self._courses, states)

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """See `CourseBatch.restore`."""
        self._arrange(self._courses, snapshot)

    def _arrange(self, courses: Sequence[Course], states: Sequence[CourseState | None]) -> None:
        self._needs = [self._needs_of(course) for course in courses]
        self._courses = tuple(courses)
        self._last = {
            i: state.last for i, state in enumerate(states) if state and state.last is not None
        }
        kind = AsynchronousLockstep if self._algorithm.asynchronous else Lockstep
        self._groups = []
        for key, positions in self._members().items():
            own = [states[position] for position in positions]
            group = kind(
                positions,
                [courses[position] for position in positions],
                [self._needs[position] for position in positions],
                [0 if state is None else state.round for state in own],
                self._evaluation(key),
                self._algorithm,
                self._device,
                self._horizon,
                self._buffers,
            )
            self._groups.append(group)
            for row, state in enumerate(own):
                if state is not None:
                    group.put(row, state)

    def _know(self, federations: Mapping[int, Federation], used: Collection[int]) -> None:
        super()._know(federations, used)
        self._evaluations = {k: one for k, one in self._evaluations.items() if k[0] in used}

    def _evaluation(self, key: Key) -> GroupEvaluation:
        if key not in self._evaluations:
            seed, architecture = key
            prepared = PreparedFederation(
                self._federations[seed], self._model, architecture, self._device, self._precision
            )
            self._evaluations[key] = GroupEvaluation(prepared, self._device)
        return self._evaluations[key]


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
