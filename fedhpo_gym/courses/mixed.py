"""Courses of several models side by side: the engine trains one model in a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from fedhpo_gym.fl.engine import CourseBatch, Curves
from fedhpo_gym.fl.records import CourseState


class MixedBatch:
    """Batches of one model each that are asked as one; see `CourseBatch`."""

    def __init__(self, batches: Sequence[tuple[Sequence[int], CourseBatch]]) -> None:
        """Join batches, each with the positions that its courses have among all."""
        self._batches = [(np.array(positions), batch) for positions, batch in batches]
        self._count = sum(len(positions) for positions, _ in batches)

    def advance(
        self,
        rounds: int,
        progress: Callable[[], None] | None = None,
        evaluated: Collection[int] | None = None,
    ) -> Curves:
        """Train every course for some more rounds; see `CourseBatch.advance`."""
        curves = [batch.advance(rounds, progress, evaluated) for _, batch in self._batches]
        metrics = np.empty((self._count, *curves[0].metrics.shape[1:]), np.float32)
        diverged_at = np.empty(self._count, np.int64)
        for (positions, _), own in zip(self._batches, curves, strict=True):
            metrics[positions], diverged_at[positions] = own.metrics, own.diverged_at
        return Curves(metrics, curves[0].rounds, diverged_at)

    def snapshot(self) -> list[CourseState | None]:
        """Return the state of every course."""
        states: list[CourseState | None] = [None] * self._count
        for positions, batch in self._batches:
            for position, state in zip(positions, batch.snapshot(), strict=True):
                states[position] = state
        return states

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """Go back to a snapshot of this batch."""
        for positions, batch in self._batches:
            batch.restore([snapshot[position] for position in positions])
