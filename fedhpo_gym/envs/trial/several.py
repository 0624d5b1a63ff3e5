"""Rows of trials whose episodes are of different instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.envs.batched.layout import Indices, Mask
from fedhpo_gym.envs.trial.sources import RowSource


class SeveralSources:
    """Asks the source of each episode's instance.

    Every source answers for all N episodes, and only the rows of its own are taken: what the others
    are charged there is forgotten when they start on another instance.

    Attributes:
        parts: the sources of the instances; handles of one are handles of all.
        instance: (N,) numbers of the instances that the episodes are of.
    """

    def __init__(self, parts: Sequence[RowSource], number: int) -> None:
        """Put all N episodes on the first instance."""
        self.parts = tuple(parts)
        self.instance = np.zeros(number, dtype=np.intp)

    @property
    def handle_type(self) -> type | np.dtype[np.void]:
        """See `RowSource.handle_type`."""
        return self.parts[0].handle_type

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        present = self._present()
        if len(present) == 1:
            return self.parts[present[0]].answer(actions, active, seen)
        own = np.empty_like(seen)
        answers = []
        for number in present:
            mine = self.instance == number
            answers.append((mine, *self.parts[number].answer(actions, active & mine, own)))
            seen[mine] = own[mine]
        handles, rows = (array.copy() for array in answers[0][1:])
        for mine, theirs, numbers in answers[1:]:
            handles[mine], rows[mine] = theirs[mine], numbers[mine]
        return handles, rows

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        for part in self.parts:
            part.restart(where)

    def query(self, handle: Any) -> CheckedQuery:
        """See `RowSource.query`."""
        return self.parts[0].query(handle)

    def details(self) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        present = self._present()
        if len(present) == 1:
            return self.parts[present[0]].details().copy()
        found = [self.parts[number].details() for number in present]
        rows = np.zeros((len(self.instance), max(part.shape[1] for part in found)))
        for number, part in zip(present, found, strict=True):
            if part.size:  # else it was never asked
                rows[self.instance == number] = part[self.instance == number]
        return rows

    def _present(self) -> list[int]:
        if len(self.parts) == 1:
            return [0]
        found: list[int] = np.unique(self.instance).tolist()
        return found
