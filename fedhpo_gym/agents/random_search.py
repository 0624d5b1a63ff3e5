"""Random search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.seeding import stream


class RandomSearch(Agent):
    """Independent uniform actions (Bergstra and Bengio, 2012).

    The action codec holds the prior, log scales and grids included, so uniform actions are draws
    from the prior of the search space.
    """

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._rng = stream(self.seed, "random_search")

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        box = self.action_space
        return self._rng.uniform(box.low, box.high).astype(np.float32)

    def _state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
