"""What an agent has asked and was not told of yet."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

T = TypeVar("T")


class Pending(Generic[T]):
    """Finds by its action what was asked: with several workers, answers come out of order.

    Where one action was asked several times, the first of these is told first.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[T]] = {}

    def put(self, action: NDArray[np.float32], what: T) -> NDArray[np.float32]:
        """Remember what an action stands for; return the action."""
        self._waiting.setdefault(action.tobytes(), []).append(what)
        return action

    def take(self, action: NDArray[np.float32]) -> T:
        """Return what an action that is told stands for, and forget it.

        Raises:
            InvalidArgumentError: no such action was asked, or all of them have been told.
        """
        key = np.asarray(action, dtype=np.float32).tobytes()
        if key not in self._waiting:
            raise InvalidArgumentError(
                "`tell` must follow `ask` with the action that it returned, but nothing was asked "
                "that this would answer"
            )
        first = self._waiting[key].pop(0)
        if not self._waiting[key]:
            del self._waiting[key]
        return first
