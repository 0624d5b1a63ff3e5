"""All points of a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

MAX_GRID = 2**24
"""Points of a grid whose order is drawn at once."""


class GridSearch(TrialSearch):
    """All points of the grid, once each, in an order drawn from the seed; then all again.

    Dimensions with values have these as their points, others their `bins`, or `points` evenly
    spaced ones. As in FedHPO-Bench, the order is random: a run that stops early has not spent
    itself on one corner.

    Args:
        problem: what it acts on.
        points: of an interval that has no `bins`, and the most of one that has.

    Raises:
        InvalidArgumentError: the grid is too large, or `points` is no integer of at least 2.
    """

    rewards = "any"
    replays = False

    def __init__(self, problem: SearchProblem, *, points: int = 5) -> None:
        super().__init__(problem)
        number = as_integer(points)
        if number is None or number < 2:
            raise InvalidArgumentError(f"`points` must be an integer of at least 2, got {points!r}")
        self._sizes = tuple(
            len(d.values) if d.values is not None else min(d.bins or number, number)
            for d in problem.search_space.dimensions
        )
        if math.prod(self._sizes) > MAX_GRID:
            raise InvalidArgumentError(
                f"`points` must leave at most {MAX_GRID} points, got {points} and a grid of "
                f"{self._sizes}; choose fewer, or fix some dimensions."
            )
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._time = -1

    def _suggest(self, number: int) -> NDArray[Any]:
        time, turn = divmod(number, math.prod(self._sizes))
        if time != self._time:
            rng = stream(self.seed, "grid_search", time)
            self._order, self._time = rng.permutation(math.prod(self._sizes)), time
        cells = np.array(np.unravel_index(self._order[turn], self._sizes))
        return self.from_unit(np.array([self._place(i, int(c)) for i, c in enumerate(cells)]))

    def _place(self, axis: int, cell: int) -> float:
        """Return where a point of an axis is: cell centres of values, ends and all of intervals."""
        size = self._sizes[axis]
        if self.problem.search_space.dimensions[axis].values is not None:
            return (cell + 0.5) / size
        return cell / (size - 1)
