"""Many function evaluations of one federation side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import (
    METRICS,
    SPLITS,
    Evaluation,
    Metric,
    Split,
    client_means,
    position,
)


@dataclass(frozen=True, eq=False)
class Evaluations:
    """B answers of one backend, each with the same S seeds and N clients.

    Every number equals, bit for bit, the one an `Evaluation` of the same answer gives.

    Attributes:
        best: (B, S, N, 3, 3) metrics at the round of the lowest validation loss so far; NaN where
            nobody asked for them.
        num_samples: (S, N, 3) samples of each client in each split, or (B, S, N, 3) where they
            differ between answers.
        best_round: (B, S) the rounds of `best`.
        diverged: (B, S) whether training of that seed diverged by the requested round.

    Raises:
        InvalidArgumentError: the shapes do not fit together.
    """

    best: NDArray[np.floating]
    num_samples: NDArray[np.integer]
    best_round: NDArray[np.integer]
    diverged: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Check the shapes."""
        samples = self.num_samples.shape
        expected = (*samples[-3:-1], len(SPLITS), len(METRICS))
        own = samples[:-3] in ((), self.best.shape[:1])
        if self.best.ndim != 5 or self.best.shape[1:] != expected or not own:
            raise InvalidArgumentError(
                f"`best` must have shape (evaluations, {', '.join(map(str, expected))}) to match "
                f"`num_samples`, got {self.best.shape}."
            )
        for name in ("best_round", "diverged"):
            shape = getattr(self, name).shape
            if shape != self.best.shape[:2]:
                raise InvalidArgumentError(
                    f"`{name}` must have shape {self.best.shape[:2]} to match `best`, got {shape}."
                )

    @classmethod
    def stack(cls, evaluations: Sequence[Evaluation]) -> Evaluations:
        """Put evaluations with the same seeds and clients side by side.

        Raises:
            InvalidArgumentError: there is none, or their samples differ.
        """
        if not evaluations:
            raise InvalidArgumentError("`evaluations` must hold at least one, got none.")
        samples = evaluations[0].num_samples
        if not all(np.array_equal(samples, other.num_samples) for other in evaluations):
            raise InvalidArgumentError("`evaluations` must have the same samples, but they differ.")
        return cls(
            np.stack([evaluation.best for evaluation in evaluations]),
            samples,
            np.stack([evaluation.best_round for evaluation in evaluations]),
            np.stack([evaluation.diverged for evaluation in evaluations]),
        )

    def like(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """Return each answer alone, in place of the one of which less is known here.

        Metrics of clients that have no samples here are NaN: nobody knows them.

        Args:
            evaluations: B answers with all samples.
        """
        shape = (*self.best.shape[:-1], 1)
        there = np.broadcast_to(self.num_samples[..., None] > 0, shape)
        known = np.where(there, self.best, np.nan)
        samples = np.broadcast_to(self.num_samples, shape[:-1])
        return [
            replace(one, best=best, current=None, num_samples=own)
            for one, best, own in zip(evaluations, known, samples, strict=True)
        ]

    @cached_property
    def has_diverged(self) -> NDArray[np.bool_]:
        """(B,) whether training diverged under any of the seeds."""
        return np.asarray(self.diverged.any(axis=1))

    def mean(self, split: Split, metric: Metric) -> NDArray[np.float64]:
        """Return (B,) numbers; see `Evaluation.mean`.

        Raises:
            UnknownNameError: the split or the metric does not exist.
            InvalidArgumentError: a seed has no sample in the split.
        """
        row, column = self._row(split), position("metric", metric, METRICS)
        return self._means[:, row, column]

    def means(self, splits: Sequence[Split], metric: Metric) -> NDArray[np.float64]:
        """Return (B, splits) numbers: `mean` of several splits.

        Raises:
            UnknownNameError: a split or the metric does not exist.
            InvalidArgumentError: a seed has no sample in a split.
        """
        column = position("metric", metric, METRICS)
        return self._means[:, [self._row(split) for split in splits], column]

    def _row(self, split: Split) -> int:
        row = position("split", split, SPLITS)
        if row in self._empty:
            raise InvalidArgumentError(f"`split` must hold samples, but {split!r} is empty.")
        return row

    @cached_property
    def _empty(self) -> frozenset[int]:
        """Positions of the splits in which a seed has no sample."""
        missing = (self.num_samples.sum(axis=-2) == 0).reshape(-1, len(SPLITS)).any(axis=0)
        return frozenset(np.flatnonzero(missing).tolist())

    @cached_property
    def memo(self) -> dict[Hashable, NDArray[np.float64]]:
        """What was computed of these evaluations, by name; its arrays cannot be written into."""
        return {}

    @cached_property
    def _means(self) -> NDArray[np.float64]:
        return client_means(self.best, self.num_samples)

    def clients(self, split: Split, metric: Metric) -> NDArray[np.floating]:
        """Return the (B, S, N) view of one metric in one split, client by client.

        Raises:
            UnknownNameError: the split or the metric does not exist.
        """
        row, column = position("split", split, SPLITS), position("metric", metric, METRICS)
        return self.best[..., row, column]
