"""What of stored curves is coded, and in which order: one model for both directions.

Of the best model so far little is coded: it is that of the round before, or the current one, unless
it was found in a round that is not stored. `best_round` says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.tables import codec
from fedhpo_gym.tables.listed import Listed
from fedhpo_gym.tables.neighbours import Cells, Known, Path, Prediction
from fedhpo_gym.tables.rans import Coder, Integers

Values = NDArray[np.int32]

WHICH = ("current", "best")
_SLOPE = 0.8
"""What a hit more adds to macro-F1, as a share of what it adds to the accuracy."""
ORDER = ("loss", "accuracy", "f1")
"""Hits come before the macro-F1 that depends on them."""
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class Layout:
    """What a card says of curves.

    Attributes:
        shape: axes of the cells: those of `best_round`.
        axis: which of them is that of the rounds.
        axes: those along which neighbouring cells may be alike.
        rounds: the stored rounds.
        samples: (seeds, clients, splits).
        splits: names of the splits.
        metrics: names of the metrics.
    """

    shape: tuple[int, ...]
    axis: int
    axes: tuple[int, ...]
    rounds: tuple[int, ...]
    samples: NDArray[np.int64]
    splits: tuple[str, ...]
    metrics: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check names.

        Raises:
            ValueError: one comes twice.
        """
        for names in (self.splits, self.metrics):
            if len({*names}) < len(names):
                raise ValueError(f"splits and metrics must differ, got {names}")

    @property
    def packed(self) -> list[str]:
        """Metrics that are packed; hits of huge clients are not."""
        return [m for m in ORDER if m in self.metrics and self.limits(m).max() <= _MOST_CODES]

    @property
    def names(self) -> set[str]:
        """Names of the arrays that are packed."""
        return {f"{w}_{s}_{m}" for w in WHICH for s in self.splits for m in self.packed}

    @property
    def by_column(self) -> NDArray[np.int64]:
        """Samples as (seeds, columns)."""
        return self.samples.transpose(0, 2, 1).reshape(len(self.samples), -1)

    def dtypes(self, metric: str) -> dict[str, np.dtype[np.unsignedinteger]]:
        """Return the type of a metric's codes, by split."""
        return {s: codec.dtype(metric, self.samples[:, :, i]) for i, s in enumerate(self.splits)}

    def limits(self, metric: str) -> Integers:
        """Return (columns,) how many codes there are."""
        sizes = [1 << 8 * dtype.itemsize for dtype in self.dtypes(metric).values()]
        return np.repeat(np.array(sizes, np.int64), self.samples.shape[1])

    def following(
        self, best_round: NDArray[np.integer]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for every cell whether its best model is that of the round before, or its own."""
        best = np.moveaxis(best_round, self.axis, 0)
        same = np.zeros(best.shape, np.bool_)
        same[1:] = best[1:] == best[:-1]
        own = best == np.array(self.rounds).reshape(-1, *[1] * (best.ndim - 1))
        own &= ~same
        return np.moveaxis(same, 0, self.axis).ravel(), np.moveaxis(own, 0, self.axis).ravel()


class Model:
    """Codes the curves of a layout."""

    def __init__(
        self,
        layout: Layout,
        paths: Sequence[Path],
        coder: Coder,
        seeds: Integers,
        listed: Listed | None,
    ) -> None:
        """Take what both directions know.

        Args:
            layout: the curves.
            paths: how neighbours predict; one of them goes along the axis of rounds alone.
            coder: codes residuals.
            seeds: (cells,) positions of seeds.
            listed: the macro-F1 that occur; None to code them as they are.
        """
        self._layout, self._coder = layout, coder
        self._cells = Cells(layout.shape, paths)
        self._seeds, self._listed = seeds, listed
        per_hit = _SLOPE * codec.F1_STEPS / np.maximum(layout.by_column, 1)
        self._slopes = per_hit.astype(np.float32)

    def run(
        self,
        values: Mapping[tuple[str, str], Values],
        following: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None,
    ) -> dict[tuple[str, str], Values]:
        """Code everything.

        Args:
            values: (cells, columns) codes by which and metric; a decoder has zeros.
            following: which best models are not coded; see `Layout.following`.

        Returns:
            The same as `values`.
        """
        done: dict[tuple[str, str], Values] = {}
        for which in WHICH:
            surprise = np.zeros((self._cells.number, self._layout.by_column.shape[1]), np.int32)
            for metric in self._layout.packed:
                best = which == "best"
                group = _Group(
                    self._layout.limits(metric).astype(np.int32),
                    values[which, metric],
                    done.get((which, "accuracy")) if metric == "f1" and self._listed else None,
                    done["current", metric].astype(np.float32) if best else None,
                    following if best else None,
                )
                done[which, metric] = self._group(group, surprise)
        return done

    def _group(self, group: _Group, surprise: NDArray[np.int32]) -> Values:
        cells, columns = group.values.shape
        known = Known(cells, columns, len(self._cells.paths) + (group.guess is not None))
        for at in self._cells.pieces(group.values.shape[1]):
            left = self._follow(group, known, at)
            if left.size:
                guess = None if group.guess is None else group.guess.take(left, axis=0)
                prediction = Prediction(self._cells, known, left, guess)
                if self._listed is None or group.hits is None:
                    self._number(group, prediction, left, surprise)
                else:
                    lists = self._listed.find(self._seeds[left], group.hits.take(left, axis=0))
                    self._place(self._listed, lists, group, prediction, left, surprise)
        return known.values[:-1].astype(np.int32)

    def _follow(self, group: _Group, known: Known, at: Integers) -> Integers:
        """Fill in what is not coded, and return the other cells."""
        if group.following is None or group.guess is None:
            return at
        same, own = (one[at] for one in group.following)
        known.values[at[same]] = known.values[at[same] - self._cells.strides[self._layout.axis]]
        known.values[at[own]] = group.guess[at[own]]
        return at[~(same | own)]

    def _number(
        self, group: _Group, prediction: Prediction, at: Integers, surprise: NDArray[np.int32]
    ) -> None:
        """Code numbers as differences from what was expected."""
        top = group.limits - 1
        expected = np.clip(np.rint(prediction.values).astype(np.int32), 0, top)
        half = group.limits // 2
        missed = ((group.values.take(at, axis=0) - expected + half) & top) - half
        missed = self._coder.code(prediction.contexts.ravel(), missed.ravel())
        missed = missed.reshape(expected.shape)
        surprise[at] = missed
        prediction.learn((expected + missed) & top, missed)

    def _place(
        self,
        listed: Listed,
        lists: NDArray[np.int32],
        group: _Group,
        prediction: Prediction,
        at: Integers,
        surprise: NDArray[np.int32],
    ) -> None:
        """Code macro-F1 as places in a list; unforeseen hits say that it moved, too."""
        moved = surprise.take(at, axis=0) * self._slopes.take(self._seeds[at], axis=0)
        moved += prediction.values
        expected = listed.place(lists, np.rint(moved, out=moved).astype(np.int32))
        missed = listed.place(lists, group.values.take(at, axis=0)) - expected
        choice = listed.sizes.take(lists) > 1
        missed[~choice] = 0
        missed[choice] = self._coder.code(prediction.contexts[choice], missed[choice])
        prediction.learn(listed.value(lists, expected + missed), missed)


@dataclass(frozen=True)
class _Group:
    """The curves of one metric.

    Attributes:
        limits: (columns,) how many codes there are.
        values: (cells, columns) codes.
        hits: the same of the accuracy, where macro-F1 is in lists.
        guess: those of the current model, for the best one.
        following: which best models are not coded.
    """

    limits: NDArray[np.int32]
    values: Values
    hits: Values | None
    guess: NDArray[np.float32] | None
    following: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None
