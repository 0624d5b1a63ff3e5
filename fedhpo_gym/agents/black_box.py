"""Black-box optimizers that need only numpy: random search, grids, differential evolution.

They ignore fidelities and the structure of the problem. Random search is the reference of every
comparison (`fedhpo_gym.analysis.overview`). Grid search and differential evolution follow the
settings of FedHPO-Bench, Appendix C, and DEHB shares the constants of differential evolution.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem
from fedhpo_gym.agents.search import Row, TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream


class RandomSearch(Agent):
    """Independent uniform actions (Bergstra and Bengio, 2012).

    The action codec holds the prior, log scales and grids included, so uniform actions are draws
    from the prior of the search space.
    """

    starts = True

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._rng = stream(self.seed, "random_search")
        self._given: list[NDArray[np.float32]] = [*self.first_actions()]

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        if self._given:
            return self._given.pop(0)
        return self._rng.uniform(self.action_space.low, self.action_space.high).astype(np.float32)

    def _state(self) -> dict[str, Any]:
        remaining = [action.tolist() for action in self._given]
        return {"rng": self._rng.bit_generator.state, "left": remaining}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._given = [np.array(action, dtype=np.float32) for action in state["left"]]


MAX_GRID = 2**24
"""Points of a grid whose order is drawn at once."""


class GridSearch(TrialSearch):
    """All points of the grid, once each, in an order drawn from the seed; then all again.

    Dimensions with values have these as their points, others their `bins`, or `points` evenly
    spaced ones. As in FedHPO-Bench, the order is random: a run that stops early has not spent
    itself on one corner. Under conditions, points that differ where a coordinate means nothing are
    one configuration, which is tried as often as there are of them.

    Args:
        points: of an interval that has no `bins`, and the most of one that has, or of integers. By
            default as many as fit, at most 5.
    """

    rewards = "any"
    replays = False

    @validate_call
    def __init__(
        self, problem: SearchProblem, *, points: Annotated[int, Range(2)] | None = None
    ) -> None:
        super().__init__(problem)
        for points_per_axis in (5, 4, 3, 2) if points is None else (points,):
            self._sizes = tuple(
                min(
                    points_per_axis,
                    d.bins or (int(d.high - d.low) + 1 if d.kind == "int" else points_per_axis),
                )
                if d.values is None
                else len(d.values)
                for d in problem.search_space.dimensions
            )
            if math.prod(self._sizes) <= MAX_GRID:
                break
        else:
            raise InvalidArgumentError(
                f"`points` must leave at most {MAX_GRID} points, got {points_per_axis} and a grid "
                f"of {self._sizes}; {'choose fewer, or ' * ((points or 2) > 2)}fix some dimensions."
            )
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._time = -1

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        pass_index, turn = divmod(trial_index, math.prod(self._sizes))
        if pass_index != self._time:
            rng = stream(self.seed, "grid_search", pass_index)
            self._order, self._time = rng.permutation(math.prod(self._sizes)), pass_index
        cells = np.array(np.unravel_index(self._order[turn], self._sizes))
        return self.from_unit(np.array([self._place(i, int(c)) for i, c in enumerate(cells)]))

    def _place(self, axis: int, cell: int) -> float:
        """Return the coordinate of a point: a cell centre of values, or evenly spaced with ends."""
        size = self._sizes[axis]
        if self.problem.search_space.dimensions[axis].values is not None:
            return (cell + 0.5) / size
        return cell / (size - 1)


FACTOR, CROSSOVER = 0.5, 0.5
"""F, the factor of a difference, and CR, the chance that a coordinate is the mutant's
(FedHPO-Bench, Appendix C)."""


def offspring(
    target: Floats, pool: Floats, rng: np.random.Generator, crossover: float = CROSSOVER
) -> Floats:
    """Return (n,) rand1/bin of the (m, n) pool; coordinates outside [0, 1] are drawn anew."""
    first, second, third = pool[rng.choice(len(pool), 3, replace=False)]
    mutant = first + FACTOR * (second - third)
    mutant = np.where((mutant < 0.0) | (mutant > 1.0), rng.random(len(mutant)), mutant)
    is_crossed = rng.random(len(mutant)) < crossover
    is_crossed[rng.integers(len(mutant))] = True
    return np.where(is_crossed, mutant, target)


class DifferentialEvolution(TrialSearch):
    """DE with the strategy rand1/bin, F = CR = 0.5 and 20 members (FedHPO-Bench, Appendix C).

    Storn and Price, "Differential evolution: a simple and efficient heuristic for global
    optimization over continuous spaces", Journal of Global Optimization 11 (1997).

    A member is replaced as soon as a trial point of it is at least as good, so that the next one
    can use it already (as in DEHB's DE; Storn and Price exchange whole generations). The three
    points of a mutation are different ones, of which the target may be one.

    Args:
        members: of the population; the first trials are as many draws from the prior.
    """

    @validate_call
    def __init__(
        self, problem: SearchProblem, *, members: Annotated[int, Range(4, 10_000)] = 20
    ) -> None:
        super().__init__(problem)
        self._rng = stream(self.seed, "differential_evolution")
        self.population = self._rng.random((members, self.action_space.shape[0]))
        self._fitness = np.full(members, -np.inf)
        self._targets: dict[int, tuple[int, Floats]] = {}

    def _begin_with(self, trial_index: int, action: Row) -> NDArray[Any]:
        member, point = trial_index % len(self.population), self.to_unit(action)
        if trial_index < len(self.population):
            self.population[member] = point
        self._targets[trial_index] = (member, point)
        return action

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        member = trial_index % len(self.population)
        point = self.population[member]
        if trial_index >= len(self.population):
            point = offspring(point, self.population, self._rng)
        self._targets[trial_index] = (member, point)
        return self.from_unit(point)

    def _learn(self, trial_index: int, scores: Floats) -> None:
        member, point = self._targets.pop(trial_index)
        if scores[0] >= self._fitness[member]:
            self.population[member], self._fitness[member] = point, scores[0]
