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

    @property
    def packed(self) -> list[str]:
        """Metrics that are packed; hits of huge clients are not."""
        return [m for m in ORDER if m in self.metrics and self.limits(m).max() <= _MOST_CODES]

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

    def following(self, best_round: NDArray[np.integer]) -> tuple[NDArray[np.bool_], ...]:
        """Return for every cell whether its best model is that of the round before, or its own."""
        best = np.moveaxis(best_round, self.axis, 0)
        same = np.zeros(best.shape, np.bool_)
        same[1:] = best[1:] == best[:-1]
        own = best == np.array(self.rounds).reshape(-1, *[1] * (best.ndim - 1))
        return tuple(
            np.moveaxis(one, 0, self.axis).ravel() for one in (same, own & ~same)
        )


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

    def run(
        self,
        values: Mapping[tuple[str, str], Values],
        following: tuple[NDArray[np.bool_], ...] | None,
    ) -> None:
        """Code everything; a decoder fills the arrays.

        Args:
            values: (cells, columns) codes by which and metric.
            following: which best models are not coded; see `Layout.following`.
        """
        for which in WHICH:
            surprise = np.zeros(next(iter(values.values())).shape, np.int16)
            for metric in self._layout.packed:
                hits = values.get((which, "accuracy")) if metric == "f1" else None
                guess = values["current", metric] if which == "best" else None
                self._group(
                    _Group(self._layout.limits(metric), values[which, metric], hits, guess),
                    surprise,
                    following if which == "best" else None,
                )

    def _group(
        self,
        group: _Group,
        surprise: NDArray[np.int16],
        following: tuple[NDArray[np.bool_], ...] | None,
    ) -> None:
        paths = len(self._cells.paths) + (group.guess is not None)
        known = Known(*group.values.shape, paths)
        before = self._cells.strides[self._layout.axis]
        for at in self._cells.pieces(group.values.shape[1]):
            if following is not None and group.guess is not None:
                same, own = (one[at] for one in following)
                group.values[at[same]] = group.values[at[same] - before]
                group.values[at[own]] = group.guess[at[own]]
                known.values[at] = group.values[at]
                at = at[~(same | own)]
            if at.size:
                guess = None if group.guess is None else group.guess[at]
                prediction = Prediction(self._cells, known, at, guess)
                code = self._number if group.hits is None or self._listed is None else self._listing
                code(group, prediction, at, surprise)

    def _number(
        self, group: _Group, prediction: Prediction, at: Integers, surprise: NDArray[np.int16]
    ) -> None:
        """Code numbers as differences from what was expected."""
        limits = group.limits
        expected = np.clip(np.rint(prediction.values), 0, limits - 1).astype(np.int64)
        half = limits // 2
        missed = ((group.values[at] - expected + half) & (limits - 1)) - half
        missed = self._coder.code(prediction.contexts.ravel(), missed.ravel())
        missed = missed.reshape(expected.shape)
        surprise[at] = missed
        values = (expected + missed) & (limits - 1)
        group.values[at] = values
        prediction.learn(values, missed)

    def _listing(
        self, group: _Group, prediction: Prediction, at: Integers, surprise: NDArray[np.int16]
    ) -> None:
        """Code macro-F1 as places in a list; unforeseen hits say that it moved, too."""
        listed = self._listed
        assert listed is not None and group.hits is not None
        seeds = self._seeds[at]
        lists = listed.find(seeds, group.hits[at])
        moved = surprise[at] * (_SLOPE * codec.F1_STEPS / np.maximum(self._layout.by_column, 1))[seeds]
        expected = np.clip(np.rint(prediction.values + moved), 0, group.limits - 1).astype(np.int64)
        place = listed.place(lists, expected)
        missed = listed.place(lists, group.values[at]) - place
        open_ = listed.sizes[lists] > 1
        missed[~open_] = 0
        missed[open_] = self._coder.code(prediction.contexts[open_], missed[open_])
        values = listed.value(lists, place + missed)
        group.values[at] = values
        prediction.learn(values, missed)


_SLOPE = 0.8


@dataclass(frozen=True)
class _Group:
    """The curves of one metric.

    Attributes:
        limits: (columns,) how many codes there are.
        values: (cells, columns) codes.
        hits: the same of the accuracy, for a macro-F1.
        guess: those of the current model, for the best one.
    """

    limits: Integers
    values: Values
    hits: Values | None
    guess: Values | None
