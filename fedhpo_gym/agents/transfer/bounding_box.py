"""A search space that is learned from other tasks (Perrone et al., 2019)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import GaussianProcessSearch


class BoundingBoxSearch(GaussianProcessSearch):
    """Expected improvement in the smallest box that has the best of every source task.

    Its first `initial` trials are draws from the box. Candidates outside of it are preferred to
    none inside, by how near they are.
    """

    transfers = True
    eager = True

    @cached_property
    def box(self) -> tuple[Array, Array]:
        """(F,) lowest and highest features of the best of every source task."""
        best = np.array([source.points[source.scores.argmax()] for source in self.sources])
        return best.min(axis=0), best.max(axis=0)

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        value = rng.random(len(candidates))
        if len(own.scores) >= self.initial:
            value = super().prefer(own, candidates, rng)
        if not self.sources:
            return value
        low, high = self.box
        beyond = np.maximum(low - candidates, candidates - high).clip(min=0.0).sum(axis=1)
        return np.where(beyond > 1e-6, value.min() - 1.0 - beyond, value)
