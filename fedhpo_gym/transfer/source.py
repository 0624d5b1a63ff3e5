"""What a set of tuned tasks is to HPO-B's interface, and dictionaries that read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import shown

SEEDS: Final = ("test0", "test1", "test2", "test3", "test4")
"""HPO-B's names of the initial rows of a run."""
Reals = NDArray[np.floating]
V = TypeVar("V")


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


class Lazy(MutableMapping[str, V]):
    """What behaves like a dictionary, and makes each value when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._makers[key] = lambda: value
        self._made[key] = value

    def __delitem__(self, key: str) -> None:
        del self._makers[key]
        self._made.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {shown(list(self))}"


Tables = MutableMapping[str, MutableMapping[str, dict[str, Any]]]
"""{search space: {data set: {"X": n lists of F values, "y": n lists of one}}}, as HPO-B's."""
