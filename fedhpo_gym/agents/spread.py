"""Points that are evenly spread, by scipy."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("an agent of SciPy", "SciPy", "agents", "scipy"):
    from scipy.stats import qmc


class _Spread(TrialSearch):
    """Points of a sequence from `scipy.stats.qmc`, in blocks; scores are not looked at."""

    rewards = "any"
    replays = False
    size: int

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._block = -1
        self._points: Floats = np.empty((0, self.action_space.shape[0]))

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        block, turn = divmod(trial_index, self.size)
        if block != self._block:
            self._points, self._block = self._draw_block(block), block
        return self.from_unit(self._points[turn])

    @abstractmethod
    def _draw_block(self, block: int) -> Floats:
        """Return (size, n) points of the unit cube."""


class SobolSearch(_Spread):
    """A scrambled Sobol sequence (Sobol, 1967; Owen, 1998), by scipy; scrambled anew every 1,024.

    Balanced in every power of two of trials.
    """

    size = 1024

    def _draw_block(self, block: int) -> Floats:
        rng = stream(self.seed, "sobol", block)
        return np.asarray(qmc.Sobol(self.action_space.shape[0], rng=rng).random(self.size))


class LatinHypercube(_Spread):
    """Latin hypercubes of `size` points each (McKay, Beckman and Conover, 1979), by scipy.

    Every coordinate of a block has one point in each of `size` equal intervals.
    """

    size = 32

    def _draw_block(self, block: int) -> Floats:
        rng = stream(self.seed, "latin_hypercube", block)
        return np.asarray(qmc.LatinHypercube(self.action_space.shape[0], rng=rng).random(self.size))
