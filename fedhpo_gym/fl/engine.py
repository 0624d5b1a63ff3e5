"""A batch of independent federated courses: the primitive everything else stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedhpo_gym.fl.algorithms import Algorithm
from fedhpo_gym.fl.evaluation import Evaluator
from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.lockstep import Lockstep, Snapshot
from fedhpo_gym.fl.models import MakeModel
from fedhpo_gym.fl.packing import Course, Group, pack
from fedhpo_gym.schema import METRICS, SPLITS


@dataclass(frozen=True, eq=False)
class Curves:
    """Learning curves of a batch of courses.

    Attributes:
        metrics: (courses, rounds, clients, splits, metrics) float32, after each round.
        diverged_at: (courses,) round in which a course left the finite numbers, 0 if it did not;
            its metrics stay those of its last finite model.
    """

    metrics: NDArray[np.float32]
    diverged_at: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchSnapshot:
    """The state of a batch of courses between two rounds."""

    parts: tuple[Snapshot, ...]
    last: tuple[NDArray[np.float32] | None, ...]


WORST = np.array([np.finfo(np.float32).max, 0.0, 0.0], dtype=np.float32)
"""Loss, accuracy and macro-F1 of a course that never was finite."""


class CourseBatch:
    """Federated courses that advance together and never influence each other.

    A course gives the same numbers alone, in any batch and in any order: courses are packed into
    blocks of fixed shape, and every random draw comes from the course's own seed.
    """

    def __init__(
        self,
        federations: Mapping[int, Federation],
        make_model: MakeModel,
        algorithm: Algorithm,
        courses: Sequence[Course],
        device: str = "cpu",
    ) -> None:
        """Create the courses at round 0.

        Args:
            federations: the data, by seed; one for every seed among `courses`.
            make_model: builds the model for a federation.
            algorithm: the FL algorithm.
            courses: what to train.
            device: torch device.
        """
        self._courses = tuple(courses)
        self._clients = next(iter(federations.values())).num_clients
        target = torch.device(device)
        self._parts: list[tuple[Lockstep, Evaluator]] = []
        for group in pack(self._courses, self._clients):
            federation = federations[group.seed]
            model = make_model(federation, target)
            lockstep = Lockstep(group, courses, federation, model, algorithm, target)
            self._parts.append((lockstep, Evaluator(federation, model, target)))
        self._last: list[NDArray[np.float32] | None] = [None] * len(self._parts)

    def advance(self, rounds: int, progress: Callable[[], None] | None = None) -> Curves:
        """Train every course for some more rounds, evaluating after each.

        Args:
            rounds: how many rounds.
            progress: called after every round of every group.
        """
        shape = (len(self._courses), rounds, self._clients, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)
        diverged_at = np.zeros(len(self._courses), dtype=np.int64)
        with one_thread():
            for part, (lockstep, evaluator) in enumerate(self._parts):
                for index in range(rounds):
                    lockstep.step()
                    values = _evaluate(lockstep, evaluator, self._last[part])
                    _scatter(lockstep.group, values, metrics[:, index])
                    self._last[part] = values
                    if progress is not None:
                        progress()
                _scatter(lockstep.group, lockstep.diverged_at, diverged_at)
        return Curves(metrics, diverged_at)

    def snapshot(self) -> BatchSnapshot:
        """Return the state of every course; `restore` goes back to it any number of times."""
        parts = tuple(lockstep.snapshot() for lockstep, _ in self._parts)
        return BatchSnapshot(parts, tuple(self._last))

    def restore(self, snapshot: BatchSnapshot) -> None:
        """Go back to a snapshot of this batch."""
        for (lockstep, _), part in zip(self._parts, snapshot.parts, strict=True):
            lockstep.restore(part)
        self._last = list(snapshot.last)

    @property
    def num_groups(self) -> int:
        """Number of groups that advance one after the other."""
        return len(self._parts)


def _evaluate(
    lockstep: Lockstep, evaluator: Evaluator, last: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Evaluate; courses whose metrics are not finite diverge and keep their last ones."""
    metrics = evaluator(lockstep.parameters)
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(metrics).all(axis=(2, 3, 4)))
    if not finite.all():
        lockstep.freeze(~finite)
        fallback = np.broadcast_to(WORST, metrics.shape) if last is None else last
        metrics = np.where(finite[..., None, None, None], metrics, fallback)
    return metrics


def _scatter(group: Group, values: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    for index, block in enumerate(group.blocks):
        out[block.courses] = values[index, : len(block.courses)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: small products gain nothing from more, and rounding stays fixed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
