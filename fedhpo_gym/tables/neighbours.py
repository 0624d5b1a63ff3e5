"""Predicting stored curves from their neighbours: the courses and rounds beside a cell.

A cell is one evaluation; its *columns* are splits and clients. Neighbours differ by one step along
an axis: an earlier round, the next smaller learning rate. Each *path* is a way to extrapolate from
them, and the paths are blended by how well each did in the neighbouring cells, as lossless coders
of images do (Wu and Memon, "Context-based, adaptive, lossless image coding", 1997). Sums are of
integers, and every other operation is one that IEEE 754 rounds exactly: all machines agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.tables.rans import CONTEXTS, Coder, Integers

Path = tuple[int, ...]
"""One axis: the neighbour along it; two: both neighbours' sum minus the one across."""

MOST_PATHS = 10
_PIECE = 1 << 15
"""Numbers that are worked on together, so that they stay in the processor's cache."""
_FAIR = 0.25
"""Added to mean errors, so that a path without error does not outweigh all others."""
_SIXTEENTHS = 16


class Cells:
    """In which order cells are coded, and where their neighbours are.

    Cells whose indices have the same sum are neighbours of none of each other: they go together.

    Attributes:
        shape: axes of cells.
        paths: how neighbours predict.
        number: how many cells there are.
    """

    def __init__(self, shape: tuple[int, ...], paths: Sequence[Path]) -> None:
        self.shape = shape
        self.paths = tuple(paths)
        self.number = int(np.prod(shape))
        self.axes = tuple(sorted({axis for path in paths for axis in path}))
        self._strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        grid = np.indices(shape, dtype=np.int32, sparse=True)
        total = sum((grid[axis] for axis in self.axes), np.zeros(shape, np.int32)).ravel()
        self._order = np.argsort(total, kind="stable")
        self._ends = np.cumsum(np.bincount(total))

    def stride(self, axis: int) -> int:
        """Return how far a cell is from its neighbour along an axis."""
        return self._strides[axis]

    def pieces(self, columns: int) -> Iterator[Integers]:
        """Yield numbers of cells, all of them once, neighbours first."""
        most = max(_PIECE // columns, 1)
        for start, end in itertools.pairwise([0, *self._ends.tolist()]):
            for first in range(start, end, most):
                yield self._order[first : min(first + most, end)]

    def back(self, cells: Integers, path: Path) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the cells one step back along every axis of a path, and whether they exist."""
        there = np.ones(cells.size, np.bool_)
        steps = 0
        for axis in set(path):
            index = cells // self._strides[axis] % self.shape[axis]
            there &= index >= path.count(axis)
            steps += path.count(axis) * self._strides[axis]
        return np.maximum(cells - steps, 0), there


@dataclass
class Known:
    """What neighbours tell about: the values so far, and how well they were predicted.

    Attributes:
        values: (cells, columns).
        residuals: (cells, columns) sizes of residuals.
        totals: (cells,) their sums.
        errors: (cells, paths) summed errors of every path.
        coded: (cells,) whether residuals and errors of a cell mean anything.
    """

    values: NDArray[np.int32]
    residuals: NDArray[np.uint16]
    totals: Integers
    errors: Integers
    coded: NDArray[np.bool_]

    @classmethod
    def nothing(cls, values: NDArray[np.int32], paths: int) -> Known:
        """Return what is known before the first cell."""
        cells = len(values)
        return cls(
            values,
            np.zeros(values.shape, np.uint16),
            np.zeros(cells, np.int64),
            np.zeros((cells, paths), np.int64),
            np.zeros(cells, np.bool_),
        )


class Prediction:
    """What is expected of some cells.

    Attributes:
        values: (n, columns) predictions, not rounded.
        contexts: (n, columns) which residuals are alike in size.
    """

    def __init__(
        self, cells: Cells, known: Known, at: Integers, guess: NDArray[np.int32] | None
    ) -> None:
        """Predict.

        Args:
            cells: the cells.
            known: what neighbours tell.
            at: (n,) the cells to predict.
            guess: (n, columns) one more prediction, from elsewhere; its errors are counted last.
        """
        self._known, self._at = known, at
        columns = known.values.shape[1]
        near = [cells.back(at, (axis,)) for axis in cells.axes]
        seen = [there & known.coded[place] for place, there in near]
        count = sum((one.astype(np.int64) for one in seen), np.zeros(at.size, np.int64))
        scale = np.maximum(count, 1)
        self._candidates: list[NDArray[np.int32]] = []
        errors = self._add(known.errors, near, seen)
        weights = 1.0 / (errors / (scale * columns)[:, None] + _FAIR) ** 2
        weights *= weights
        total = np.full((at.size, 1), 1e-300)
        values = np.zeros((at.size, columns))
        for number, (candidate, there) in enumerate(self._paths(cells, at, guess)):
            weight = np.where(there, weights[:, number], 0.0)[:, None]
            values += weight * candidate
            total += weight
            self._candidates.append(candidate)
        self.values = values / total
        own = self._add(known.residuals, near, seen) * _SIXTEENTHS // scale[:, None]
        pooled = self._add(known.totals, near, seen) * _SIXTEENTHS // (scale * columns)
        sizes = _octave(own) + _octave(pooled)[:, None]
        self.contexts: Integers = np.where(
            count[:, None] > 0, np.minimum(sizes, CONTEXTS - 2), CONTEXTS - 1
        )

    def _paths(
        self, cells: Cells, at: Integers, guess: NDArray[np.int32] | None
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
        values = self._known.values
        for path in cells.paths:
            place, there = cells.back(at, path)
            candidate = values[place]
            if len(path) > 1:
                ends = [values[cells.back(at, (axis,))[0]] for axis in path]
                candidate = ends[0] + ends[1] - candidate
            yield candidate, there
        if guess is not None:
            yield guess, np.ones(at.size, np.bool_)

    @staticmethod
    def _add(
        array: NDArray[np.integer],
        near: list[tuple[Integers, NDArray[np.bool_]]],
        seen: list[NDArray[np.bool_]],
    ) -> Integers:
        """Return sums over the neighbours that were seen."""
        total = np.zeros((near[0][0].size, *array.shape[1:]), np.int64)
        for (place, _), there in zip(near, seen, strict=True):
            total += array[place] * there.reshape(-1, *[1] * (array.ndim - 1))
        return total

    def learn(self, values: Integers, residuals: Integers) -> None:
        """Take what the cells were, for those whose neighbours they are."""
        known, at = self._known, self._at
        known.values[at] = values
        size = np.abs(residuals)
        known.residuals[at] = size
        known.totals[at] = size.sum(axis=1)
        for number, candidate in enumerate(self._candidates):
            known.errors[at, number] = np.abs(values - candidate).sum(axis=1, dtype=np.int64)
        known.coded[at] = True


def _octave(sixteenths: Integers) -> Integers:
    """Return how many binary digits integers have, at most 15."""
    return _DIGITS[np.minimum(sixteenths, _DIGITS.size - 1)]


_DIGITS = np.frexp(np.arange(1 << 15).astype(np.float64))[1].astype(np.int64)


def choose_paths(values: NDArray[np.int32], shape: tuple[int, ...], axes: Sequence[int]) -> list[Path]:
    """Return the paths that predict best, most useful first.

    Args:
        values: (cells, columns).
        shape: axes of the cells; the first that may be used is that of rounds.
        axes: those along which neighbours are alike.
    """
    axes = [axis for axis in axes if shape[axis] > 1] or [axes[0]]
    pairs = itertools.combinations_with_replacement(axes, 2)
    paths: list[Path] = [*((axis,) for axis in axes), *pairs]
    cells = Cells(shape, paths)
    some = np.arange(0, cells.number, max(cells.number // 4096, 1))
    known = Known.nothing(values, len(paths))
    prediction = Prediction(cells, known, some, None)
    prediction.learn(values[some], np.zeros((some.size, values.shape[1]), np.int64))
    error = known.errors[some] / values.shape[1]
    there = np.stack([cells.back(some, path)[1] for path in paths], axis=1)
    share = np.where(there, 1.0 / (error + 1.0), 0.0)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-9)
    best = np.argsort(-share.sum(axis=0), kind="stable")[:MOST_PATHS]
    return [paths[number] for number in best]
