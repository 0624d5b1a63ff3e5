"""Random search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.seeding import stream

BLOCK = 64
"""Actions that are drawn at once."""


class RandomSearch(Agent):
    """Independent uniform actions (Bergstra and Bengio, 2012).

    The action codec holds the prior, log scales and grids included, so uniform actions are draws
    from the prior of the search space.
    """

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._rng = stream(self.seed, "random_search")
        self._drawn, self._next = self._block(0), 0

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        if self._next == len(self._drawn):
            self._drawn, self._next = self._block(BLOCK), 0
        self._next += 1
        action: NDArray[np.float32] = self._drawn[self._next - 1].copy()
        return action

    def _block(self, number: int) -> NDArray[np.float32]:
        """Draw several actions at once: the same numbers as one by one, sooner."""
        box = self.action_space
        return self._rng.uniform(box.low, box.high, (number, *box.shape)).astype(np.float32)

    def _state(self) -> dict[str, Any]:
        left = self._drawn[self._next :]
        return {"rng": self._rng.bit_generator.state, "left": left.tolist()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        left = np.array(state["left"], dtype=np.float32)
        self._drawn, self._next = left.reshape(-1, *self.action_space.shape), 0
