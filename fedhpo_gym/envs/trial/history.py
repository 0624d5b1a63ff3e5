"""The trials of an episode and the best among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value


@dataclass(frozen=True, eq=False)
class Trial:
    """One function evaluation of an episode.

    Attributes:
        number: 1 for the first trial.
        configuration: what was tried.
        fidelity: at which fidelity.
        action: (n,) the action.
        values: value of each objective.
        elapsed_s: simulated seconds since reset, this trial included.
        incumbent: number of the best trial so far.
    """

    number: int
    configuration: Mapping[str, Value]
    fidelity: Fidelity
    action: NDArray[np.float32]
    values: Mapping[str, float]
    elapsed_s: float
    incumbent: int


Step = tuple[Any, NDArray[np.float32], NDArray[np.float64], float, int]
"""Handle of the query, (n,) action, (objectives,) values, seconds since reset, best trial."""
PACKED: Final = 1024
"""Steps that are packed into arrays together: those of an endless episode take some 100 bytes."""


class History:
    """The steps of an episode, in few bytes each."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._packed: list[tuple[NDArray[Any], ...]] = []
        self._last: list[Step] = []

    def __len__(self) -> int:
        """Return the number of steps."""
        return PACKED * len(self._packed) + len(self._last)

    def add(self, step: Step) -> None:
        """Remember a step."""
        self._last.append(step)
        if len(self._last) == PACKED:
            self._packed.append(tuple(map(np.array, zip(*self._last, strict=True))))
            self._last = []

    def since(self, number: int) -> Iterator[Step]:
        """Yield the steps after so many."""
        for index in range(number, len(self)):
            block, row = divmod(index, PACKED)
            if block == len(self._packed):
                yield self._last[row]
            else:
                handles, actions, values, times, best = self._packed[block]
                yield handles[row], actions[row], values[row], float(times[row]), int(best[row])
