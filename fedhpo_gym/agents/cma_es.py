"""The covariance matrix adaptation evolution strategy (CMA-ES), by the library `cmaes`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("agent 'cma-es'", "cmaes", "agents", "cmaes"):
    import cmaes

WIDTH = 0.25
"""The first step width, as a share of the range."""


class CMAES(TrialSearch):
    """CMA-ES with margin (Hansen, 2016; Hamano et al., 2022), in the unit cube from its middle.

    Coordinates of grids and whole numbers are discrete to it: the margin keeps them from being
    stuck on one value. The first step width is a quarter of the range. When the library says that
    it has converged, it starts again from a random point. Not in FedHPO-Bench; population and
    learning rates are the library's.

    Late results, from earlier distributions, count in the generation in which they arrive.

    Args:
        problem: at least two coordinates.
    """

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        if self.action_space.shape[0] < 2:
            raise InvalidArgumentError(
                f"`action_space` must have at least two coordinates, got {self.action_space}."
            )
        self._steps = np.array([_step(d) for d in problem.search_space.dimensions])
        self._bounds = np.stack([self._steps / 2.0, 1.0 - self._steps / 2.0], axis=1)
        self._starts = 0
        self._sampled: dict[int, tuple[int, Floats]] = {}
        self._generation: list[tuple[Floats, float]] = []
        self._start(np.full(self.action_space.shape[0], 0.5))

    def _start(self, mean: Floats) -> None:
        rng = stream(self.seed, "cma_es", self._starts)
        self._starts += 1
        self._generation = []
        # One in two dimensions of a grid of one value would have no room to move in.
        bounds = self._bounds + np.where(self._bounds[:, :1] == self._bounds[:, 1:], [-0.5, 0.5], 0)
        arguments: dict[str, Any] = {
            "mean": np.clip(mean, bounds[:, 0], bounds[:, 1]),
            "sigma": WIDTH,
            "bounds": bounds,
            "seed": int(rng.integers(2**31)),
        }
        discrete = self._steps.any()
        self._optimizer: Any = (
            cmaes.CMAwM(steps=self._steps, **arguments) if discrete else cmaes.CMA(**arguments)
        )
        self._discrete = bool(discrete)

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        if trial_index == len(self._first) > 0 and self.results:
            # The shared start is not a generation of its own: its best point is the first mean.
            best = max(self.results, key=lambda index: float(self.results[index][0]))
            self._start(self.to_unit(self.actions[best]))
        point = self._optimizer.ask()
        # With margin there are two points: that of the trial, and that which `tell` needs.
        position, sample = point if self._discrete else (point, point)
        self._sampled[trial_index] = (self._starts, np.asarray(sample, dtype=np.float64))
        return self.from_unit(np.asarray(position, dtype=np.float64))

    def _learn(self, trial_index: int, scores: Floats) -> None:
        start, point = self._sampled.pop(trial_index, (-1, np.empty(0)))
        if start != self._starts:
            return
        self._generation.append((point, -float(scores[0])))
        if len(self._generation) < self._optimizer.population_size:
            return
        self._optimizer.tell(self._generation)
        self._generation = []
        if self._optimizer.should_stop():
            rng = stream(self.seed, "cma_es_restart", self._starts)
            self._start(rng.random(self.action_space.shape[0]))


def _step(dimension: Any) -> float:
    """Return the width of a cell, as a share of the range; 0 for an interval."""
    if dimension.values is not None:
        return 1.0 / len(dimension.values)
    if dimension.kind == "int" and not dimension.log:
        return float(1.0 / (dimension.high - dimension.low + 1))
    return 0.0
