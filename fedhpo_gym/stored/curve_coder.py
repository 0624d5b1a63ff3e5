"""What of stored curves is coded, and in which order: one model for both directions.

Of the best model so far little is coded: it is that of the round before, or the current one, unless
it was found in a round that is not stored. `best_round` says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.stored import codec
from fedhpo_gym.stored.codec import Coder, Integers
from fedhpo_gym.stored.neighbours import Cells, NeighbourValues, Path, Prediction

Values = NDArray[np.int32]

WHICH = ("current", "best")
_SLOPE = 0.8
"""What a hit more adds to macro-F1, as a share of what it adds to the accuracy."""
ORDER = ("loss", "accuracy", "f1")
"""Hits come before the macro-F1 that depends on them."""
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class CurveLayout:
    """What a card says of curves."""

    shape: tuple[int, ...]  # axes of the cells: those of `best_round`
    axis: int  # which of them is that of the rounds
    axes: tuple[int, ...]  # those along which neighbouring cells may be alike
    rounds: tuple[int, ...]  # the stored rounds
    samples: NDArray[np.int64]  # (seeds, clients, splits)
    splits: tuple[str, ...]  # names of the splits
    metrics: tuple[str, ...]  # names of the metrics

    def __post_init__(self) -> None:
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
        layout: CurveLayout,
        paths: Sequence[Path],
        coder: Coder,
        seeds: Integers,
        listed: Codebook | None,
    ) -> None:
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
        """Code all (cells, columns) values, zeros in a decoder, and return them."""
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
        known = NeighbourValues(cells, columns, len(self._cells.paths) + (group.guess is not None))
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

    def _follow(self, group: _Group, known: NeighbourValues, at: Integers) -> Integers:
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
        """Code numbers of `at` as differences from their predictions."""
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
        listed: Codebook,
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
    """The curves of one metric."""

    limits: NDArray[np.int32]  # (columns,) how many codes there are
    values: Values  # (cells, columns) codes
    hits: Values | None  # the same of the accuracy, where macro-F1 is in lists
    guess: NDArray[np.float32] | None  # those of the current model, for the best one
    following: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None  # which best models are not coded


MOST_LISTS = 1 << 14
"""With more lists than that, macro-F1 is coded as the number it is."""
_CODES = 1 << 8
COUNTS, VALUES = "f1_counts", "f1_values"


class Codebook:
    """Lists of macro-F1 codes, and the nearest entry of each to any code.

    Attributes:
        sizes: (lists,) entries.
    """

    def __init__(self, samples: NDArray[np.int64], members: Mapping[str, NDArray[Any]]) -> None:
        """Take the lists, with `samples` (seeds, columns)."""
        counts, values = members[COUNTS], members[VALUES]
        if counts.dtype != np.uint8 or values.dtype != np.uint8 or counts.ndim + values.ndim != 2:
            raise ValueError("lists of macro-F1 must be bytes")
        if counts.size != lists_for(samples) or int(counts.sum(dtype=np.int64)) != values.size:
            raise ValueError("the lists of macro-F1 do not fit the numbers of samples")
        self._samples = samples.astype(np.int32)
        self._first = _first(samples)
        self.sizes = counts.astype(np.int32)
        self._starts = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self._values = np.append(values, np.uint8(0)).astype(np.int32)
        occurs = np.zeros((counts.size, _CODES), np.bool_)
        occurs[np.repeat(np.arange(counts.size), counts), values] = True
        if np.count_nonzero(occurs) != values.size:
            raise ValueError("a list of macro-F1 holds a value twice")
        self._nearest = _nearest(occurs)

    def find(self, seeds: Integers, hits: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return (n, columns) numbers of lists, for `seeds` (n,) and `hits` (n, columns)."""
        return self._first.take(seeds, axis=0) + np.minimum(hits, self._samples.take(seeds, axis=0))

    def place(self, lists: NDArray[np.int32], codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return which entries are nearest to codes; 0 where a list is empty."""
        return self._nearest.take(lists * _CODES + np.clip(codes, 0, _CODES - 1)).astype(np.int32)

    def value(self, lists: NDArray[np.int32], places: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return entries; what is no place in a list is the nearest one."""
        last = np.maximum(self.sizes.take(lists) - 1, 0)
        return self._values.take(self._starts.take(lists) + np.clip(places, 0, last))


def _first(samples: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of the list of no hits: (seeds, columns)."""
    return (np.cumsum(samples + 1).reshape(samples.shape) - samples - 1).astype(np.int32)


def lists_for(samples: NDArray[np.int64]) -> int:
    """Return how many lists there are."""
    return int((samples + 1).sum())


def list_values(
    samples: NDArray[np.int64],
    seeds: Integers,
    pairs: list[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> dict[str, NDArray[np.uint8]]:
    """Return the members that hold the lists of what occurs.

    Shapes: `samples` (seeds, columns); `seeds` (cells,).
    """
    occurs = np.zeros((lists_for(samples), _CODES), np.bool_)
    for hits, codes in pairs:
        occurs[_first(samples)[seeds] + hits, codes] = True
    counts = occurs.sum(axis=1).astype(np.uint8)
    return {COUNTS: counts, VALUES: np.nonzero(occurs)[1].astype(np.uint8)}


def _nearest(occurs: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the place of the entry nearest to every code, the smaller one of two."""
    codes = np.arange(_CODES, dtype=np.int16)
    below = np.maximum.accumulate(np.where(occurs, codes, np.int16(-1 << 13)), axis=1)
    above = np.where(occurs, codes, np.int16(1 << 13))[:, ::-1]
    above = np.minimum.accumulate(above, axis=1)[:, ::-1]
    place = np.cumsum(occurs, axis=1, dtype=np.int16) - 1
    place += codes - below > above - codes
    return np.clip(place, 0, _CODES - 1).astype(np.uint8)
