"""Predicting stored curves from their neighbours: the courses and rounds beside a cell.

A cell is one evaluation; its *columns* are splits and clients. Neighbours differ by one step along
an axis: an earlier round, the next smaller learning rate. Each *path* is a way to extrapolate from
them, and the paths are blended by how well each did in the neighbouring cells, as lossless coders
of images do (Wu and Memon, "Context-based, adaptive, lossless image coding", 1997). Sums are of
integers, and every other operation is one that IEEE 754 rounds exactly: all machines agree.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.stored.codec import CONTEXTS

Path = tuple[int, ...]
"""One axis: the neighbour along it; two: both neighbours' sum minus the one across."""

MOST_PATHS = 6
_PIECE = 1 << 15
"""Numbers that are worked on together, so that they stay in the processor's cache."""
_FAIR = 0.25
"""Added to mean errors, so that a path without error does not outweigh all others."""
_SIXTEENTHS = 16
_LEAST = 1e-300
"""Nothing is divided by zero where no path exists."""
_FEW = 1 << 6
"""So many errors, below 2^18 each, add up to an integer that float32 holds exactly."""


class Cells:
    """The order in which cells are coded, neighbours first; `axes` are those paths go along."""

    def __init__(self, shape: tuple[int, ...], paths: Sequence[Path]) -> None:
        self.shape = shape
        self.paths = tuple(paths)
        self.number = int(np.prod(shape))
        self.axes = tuple(sorted({axis for path in paths for axis in path}))
        self.strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        grid = np.indices(shape, dtype=np.int32, sparse=True)
        total = sum((grid[axis] for axis in self.axes), np.zeros(shape, np.int32)).ravel()
        self._order = np.argsort(total, kind="stable")
        self._ends = np.cumsum(np.bincount(total))

    def pieces(self, columns: int) -> Iterator[Integers]:
        """Yield numbers of cells, all of them once, neighbours first."""
        most = max(_PIECE // columns, 1)
        for start, end in itertools.pairwise([0, *self._ends.tolist()]):
            for first in range(start, end, most):
                yield self._order[first : min(first + most, end)]

    def beside(self, at: Integers, axis: int) -> tuple[Integers, Integers]:
        """Return the neighbours of cells, `number` where there is none, and the indices."""
        index = at // self.strides[axis] % self.shape[axis]
        return np.where(index > 0, at - self.strides[axis], self.number), index


class NeighbourValues:
    """What neighbours tell: their values, and how well they were predicted.

    Attributes:
        values: (cells + 1, columns).
        residuals: (cells + 1, columns) sizes of residuals.
        errors: (cells + 1, paths + 2): summed errors of every path, summed residuals, and 1 where a
            cell was coded.
    """

    def __init__(self, cells: int, columns: int, paths: int) -> None:
        self.values = np.zeros((cells + 1, columns), np.float32)
        self.residuals = np.zeros((cells + 1, columns), np.int32)
        self.errors = np.zeros((cells + 1, paths + 2))
        self.total = np.float32 if columns <= _FEW else np.float64  # either adds them exactly


class Prediction:
    """What is expected of some cells.

    Attributes:
        values: (n, columns) predictions, not rounded.
        contexts: (n, columns) which residuals are alike in size.
        candidates: what every path predicts, (n, columns), and for which cells it exists.
    """

    def __init__(
        self, cells: Cells, known: NeighbourValues, at: Integers, guess: Singles | None
    ) -> None:
        """Predict cells `at` (n,), where the guess is (n, columns)."""
        self._known, self._at = known, at
        beside = {axis: cells.beside(at, axis) for axis in cells.axes}
        self.candidates = list(self._paths(cells, at, beside))
        if guess is not None:
            self.candidates.append((guess.copy(), np.ones(at.size, np.bool_)))
        near = [place for place, _ in beside.values()]
        errors = _gathered(known.errors, near)
        scale = np.maximum(errors[:, -1:], 1.0)
        mean = errors[:, :-1] / (scale * known.values.shape[1])
        self.values = self._blend(mean[:, :-1])
        own = _gathered(known.residuals, near) * (_SIXTEENTHS / scale).astype(np.int32)
        sizes = _DIGITS.take(own, mode="clip")
        sizes += _DIGITS.take((mean[:, -1:] * _SIXTEENTHS).astype(np.int32), mode="clip")
        np.minimum(sizes, CONTEXTS - 2, out=sizes)
        sizes[errors[:, -1] == 0] = CONTEXTS - 1
        self.contexts = sizes

    def _paths(
        self, cells: Cells, at: Integers, beside: Mapping[int, tuple[Integers, Integers]]
    ) -> Iterator[tuple[Singles, Bools]]:
        """Yield what every path predicts, and for which cells it exists."""
        values = self._known.values
        one = {axis: values.take(place, axis=0) for axis, (place, _) in beside.items()}
        for first, *more in cells.paths:
            there = beside[first][1] > 0
            if not more:
                yield one[first].copy(), there
                continue
            second = more[0]
            there = there & (beside[second][1] > (first == second))
            steps = cells.strides[first] + cells.strides[second]
            across = values.take(np.where(there, at - steps, cells.number), axis=0)
            yield np.subtract(one[first] + one[second], across, out=across), there

    def _blend(self, mean: Floats) -> Singles:
        """Return the mean of all paths, those with small errors weighing most."""
        weights = 1.0 / (mean + _FAIR) ** 2
        weights *= weights
        weights *= np.stack([there for _, there in self.candidates], axis=1)
        total = np.full(weights.shape[0], _LEAST)
        for column in weights.T:
            total += column
        weights /= total[:, None]
        shares = weights.astype(np.float32)
        values = np.zeros(self.candidates[0][0].shape, np.float32)
        for number, (candidate, _) in enumerate(self.candidates):
            values += shares[:, number, None] * candidate
        return values

    def learn(self, values: NDArray[np.int32], residuals: NDArray[np.int32]) -> None:
        """Keep what the cells were, which predicts the cells they are neighbours of."""
        known, at = self._known, self._at
        real = values.astype(np.float32)
        known.values[at] = real
        size = np.abs(residuals)
        known.residuals[at] = size
        blend = _sums(np.rint(self.values), real, known.total)
        errors = np.empty((at.size, known.errors.shape[1]))
        for number, (candidate, there) in enumerate(self.candidates):
            # A path that does not exist is neither better nor worse than all together.
            errors[:, number] = np.where(there, _sums(candidate, real, known.total), blend)
        errors[:, -2] = size.sum(axis=1)
        errors[:, -1] = 1
        known.errors[at] = errors


def _sums(candidate: Singles, real: Singles, dtype: type[np.floating]) -> NDArray[np.floating]:
    """Return the summed errors of every cell; the candidate is lost."""
    missed = np.subtract(candidate, real, out=candidate)
    return np.asarray(np.abs(missed, out=missed).sum(axis=1, dtype=dtype))


def _gathered(array: NDArray[Any], near: Sequence[Integers]) -> NDArray[Any]:
    """Return the sum of some rows for every cell."""
    total = array.take(near[0], axis=0)
    for place in near[1:]:
        total += array.take(place, axis=0)
    return total


_DIGITS = np.frexp(np.arange(1 << 15).astype(np.float64))[1].astype(np.uint8)
"""How many binary digits integers have, at most 15."""


def choose_paths(
    values: NDArray[np.int32], shape: tuple[int, ...], axes: Sequence[int]
) -> list[Path]:
    """Return the paths that predict best, most useful first, with `values` (cells, columns)."""
    pairs = itertools.combinations_with_replacement(axes, 2)
    paths: list[Path] = [*((axis,) for axis in axes), *pairs]
    cells = Cells(shape, paths)
    some = np.arange(0, cells.number, max(cells.number // _SOME, 1))
    known = NeighbourValues(cells.number, values.shape[1], len(paths))
    known.values[:-1] = values
    prediction = Prediction(cells, known, some, None)
    error = np.stack([np.abs(one - values[some]).mean(1) for one, _ in prediction.candidates], 1)
    there = np.stack([one for _, one in prediction.candidates], axis=1)
    error = np.where(there, error, _UNKNOWN)
    least = np.full(some.size, _UNKNOWN)
    chosen: list[int] = []
    for _ in range(min(MOST_PATHS, len(paths))):
        left = np.log2(np.minimum(least[:, None], error) + 1.0).mean(axis=0)
        left[chosen] = np.inf
        chosen.append(int(np.argmin(left)))
        least = np.minimum(least, error[:, chosen[-1]])
    return [paths[number] for number in chosen]


_UNKNOWN = 1e5
_SOME = 4096
