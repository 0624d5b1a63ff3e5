"""What a set of tuned tasks is to HPO-B's interface."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

SEEDS: Final = ("test0", "test1", "test2", "test3", "test4")
"""HPO-B's names of the initial rows of a run."""
Reals = NDArray[np.floating]


class Response(Protocol):
    """A model of a task: (n, F) points in [0, 1] -> (n,) responses; higher is better."""

    y_min: float  # the response that counts as 0
    y_max: float  # the response that counts as 1

    def __call__(self, x: ArrayLike, /) -> Reals: ...


@runtime_checkable
class MetaSource(Protocol):
    """Where evaluations of tuned tasks come from.

    A split is "train", "train-augmented", "validation" or "test". All tables of a search space
    have the same columns.
    """

    def search_spaces(self, split: str) -> Sequence[str]:
        """Return the ids of the search spaces of a split."""

    def datasets(self, space: str, split: str) -> Sequence[str]:
        """Return the ids of the data sets of a search space, none where a split lacks it."""

    def table(self, space: str, dataset: str, split: str) -> tuple[Reals, Reals]:
        """Return (n, F) configurations in [0, 1] and their (n,) responses; higher is better."""

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        """Return the rows that runs begin with, by seed of `SEEDS`."""

    def surrogate(self, space: str, dataset: str) -> Response | None:
        """Return the model of a task, if there is one."""

    def decode(self, space: str, x: ArrayLike) -> Mapping[str, Any]:
        """Return what an (F,) configuration in [0, 1] means, in natural units, by name."""


Tables = MutableMapping[str, MutableMapping[str, dict[str, Any]]]
"""{search space: {data set: {"X": n lists of F values, "y": n lists of one}}}, as HPO-B's."""
