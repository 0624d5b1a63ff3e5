"""Differential evolution: points that move by differences of other points.

Storn and Price, "Differential evolution: a simple and efficient heuristic for global optimization
over continuous spaces", Journal of Global Optimization 11 (1997).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array, TrialSearch
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

MOST_MEMBERS = 10_000
"""Of a population: far more than any budget has trials for."""


@dataclass(frozen=True)
class Evolution:
    """How a trial point is made; the defaults are those of FedHPO-Bench, Appendix C.

    Attributes:
        factor: F, what a difference is multiplied by.
        crossover: CR, the chance that a coordinate is the mutant's.

    Raises:
        InvalidArgumentError: a number is out of its range.
    """

    factor: float = 0.5
    crossover: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 2 or not 0 <= self.crossover <= 1:
            raise InvalidArgumentError(
                "`factor` must be in (0, 2] and `crossover` in [0, 1], got "
                f"factor={self.factor}, crossover={self.crossover}."
            )

    def offspring(self, target: Array, pool: Array, rng: np.random.Generator) -> Array:
        """Return (n,) rand1/bin: a + F (b - c) of three different points of the pool, crossed.

        A coordinate outside the unit cube is drawn anew, as in DEHB (Awad et al., 2021).

        Args:
            target: (n,) the point whose coordinates are kept where there is no crossover.
            pool: (m, n) with m >= 3 points in the unit cube.
            rng: what decides.
        """
        first, second, third = pool[rng.choice(len(pool), 3, replace=False)]
        mutant = first + self.factor * (second - third)
        outside = (mutant < 0.0) | (mutant > 1.0)
        mutant = np.where(outside, rng.random(len(mutant)), mutant)
        crossed = rng.random(len(mutant)) < self.crossover
        crossed[rng.integers(len(mutant))] = True
        return np.where(crossed, mutant, target)


class DifferentialEvolution(TrialSearch):
    """DE with the strategy rand1/bin, F = CR = 0.5 and 20 members (FedHPO-Bench, Appendix C).

    A member is replaced as soon as a trial point of it is at least as good, so that the next one
    can use it already (as in DEHB's DE; Storn and Price exchange whole generations). The three
    points of a mutation are different ones, of which the target may be one.

    Args:
        problem: what it acts on.
        members: of the population; the first trials are as many draws from the prior.
        settings: how trial points are made.

    Raises:
        InvalidArgumentError: there are fewer than four members, or more than `MOST_MEMBERS`.
    """

    def __init__(
        self, problem: SearchProblem, *, members: int = 20, settings: Evolution | None = None
    ) -> None:
        super().__init__(problem)
        number = as_integer(members)
        if number is None or not 4 <= number <= MOST_MEMBERS:
            raise InvalidArgumentError(
                f"`members` must be an integer from 4 to {MOST_MEMBERS:,}, got {members!r}"
            )
        self._evolution = settings or Evolution()
        self._rng = stream(self.seed, "differential_evolution")
        self.population = self._rng.random((number, self.action_space.shape[0]))
        self._fitness = np.full(number, -np.inf)
        self._targets: dict[int, tuple[int, Array]] = {}

    def _suggest(self, number: int) -> NDArray[Any]:
        member = number % len(self.population)
        point = self.population[member]
        if number >= len(self.population):
            point = self._evolution.offspring(point, self.population, self._rng)
        self._targets[number] = (member, point)
        return self.from_unit(point)

    def _learn(self, number: int, scores: Array) -> None:
        member, point = self._targets.pop(number)
        if scores[0] >= self._fitness[member]:
            self.population[member], self._fitness[member] = point, scores[0]
