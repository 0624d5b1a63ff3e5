"""DEHB: Hyperband whose configurations come from differential evolution.

Awad, Mallik, Hutter, "DEHB: evolutionary Hyperband for scalable, robust and efficient
hyperparameter optimization", IJCAI 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhpo_gym.agents.evolution import Evolution
from fedhpo_gym.agents.hyperband import Bracket, Hyperband, Point, rounded
from fedhpo_gym.agents.ladder import ROUND
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Value

PARENTS = 3
"""Points that a mutation takes."""


class DEHB(Hyperband):
    """Every rung has a population; rand1/bin with F = CR = 0.5 (FedHPO-Bench, Appendix C).

    The target of a trial is the next member of its rung's population, in turns that go on from
    bracket to bracket. In the first brackets, one from every rung, what comes up to a rung are the
    best members of the rung below that are not yet on it. All else are trial points: parents are
    the best members of the rung below, as many as the rung has trials, or of the rung itself where
    the bracket starts. Where they are fewer than three, mutants of the members of all rungs are
    added. What is at least as good as its target replaces it.

    A population is as large as the largest number of configurations that a bracket has on its rung.
    Appendix C's 20 members are those of DE alone.

    Follows the authors' package (DEHB 0.1.2) where the paper says something else or nothing.
    Differs from it with workers: which brackets are the first ones is told by the bracket of a
    trial, not by the newest bracket, so that what came up does not depend on who is waiting.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
        settings: Evolution | None = None,
    ) -> None:
        """Start as `Hyperband` does; `settings` say how trial points are made."""
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        self._evolution = settings or Evolution()
        self._evolution_rng = stream(self.seed, "dehb")
        width = self.action_space.shape[0] - len(self.fidelities)
        self._members = [self._evolution_rng.random((n, width)) for n in self._most()]
        self._fitness = [np.full(len(members), -np.inf) for members in self._members]
        self._turns = [0] * len(self.rungs)
        self._targets: dict[int, int] = {}
        self._coming: list[list[Array]] = [[] for _ in self.rungs]

    def _most(self) -> list[int]:
        """Return the largest number of configurations that a bracket has on each rung."""
        found = [0] * len(self.rungs)
        for turn in range(len(self.rungs)):
            bracket = self._bracket(turn)
            for rung in range(bracket.rung, len(self.rungs)):
                found[rung] = max(found[rung], self._size(bracket, rung))
        return found

    def _size(self, bracket: Bracket, rung: int) -> int:
        """Return how many trials a bracket has on a rung."""
        return len(self._bracket(bracket.turn).waiting) // int(self._eta ** (rung - bracket.start))

    def _point(self, number: int, bracket: Bracket, kept: Point | None) -> Point:
        rung = bracket.rung
        below, size = max(rung - 1, bracket.start), self._size(bracket, rung)
        place = self._targets[number] = self._turns[rung]
        self._turns[rung] = (place + 1) % len(self._members[rung])
        if bracket.turn < len(self.rungs) and rung > bracket.start:
            return rounded(2.0 * self._promoted(below, rung, size) - 1.0)
        best = np.argsort(-self._fitness[below], kind="stable")[:size]
        target, parents = self._members[rung][place], self._members[below][best]
        if len(parents) < PARENTS:
            everyone = np.concatenate(self._members)
            more = [self._mutant(target, everyone) for _ in range(PARENTS + 1 - len(parents))]
            parents = np.concatenate([parents, more])
        return rounded(2.0 * self._offspring(target, parents) - 1.0)

    def _promoted(self, below: int, rung: int, size: int) -> Array:
        """Return the next member of the rung below that comes up to a rung."""
        order = np.argsort(-self._fitness[below], kind="stable")
        tried = self._members[below][order[np.isfinite(self._fitness[below][order])]]
        if not self._coming[rung]:
            there = self._members[rung]
            self._coming[rung] = [one for one in tried if not (one == there).all(axis=1).any()]
            del self._coming[rung][size:]
        if self._coming[rung]:
            return self._coming[rung].pop(0)
        return np.asarray(self._members[below][order[0]])

    def _mutant(self, target: Array, pool: Array) -> Array:
        """Return (n,) a + F (b - c) of points of a pool without the target."""
        same = np.flatnonzero((pool == target).all(axis=1))
        if len(same) and len(pool) > 1:
            pool = np.delete(pool, same[0], axis=0)
        lacking = max(PARENTS - len(pool), 0)
        pool = np.concatenate([pool, self._evolution_rng.random((lacking, pool.shape[1]))])
        first, second, third = pool[self._evolution_rng.choice(len(pool), PARENTS, replace=False)]
        return np.asarray(first + self._evolution.factor * (second - third))

    def _offspring(self, target: Array, parents: Array) -> Array:
        """Return (n,) a mutant crossed with the target; one coordinate at least is the mutant's."""
        rng, mutant = self._evolution_rng, self._mutant(target, parents)
        crossed = rng.random(len(target)) < self._evolution.crossover
        if not crossed.any():
            crossed[rng.integers(len(target))] = True
        point = np.where(crossed, mutant, target)
        return np.where((point < 0.0) | (point > 1.0), rng.random(len(point)), point)

    def _see(self, number: int, rung: int, point: Point, score: float) -> None:
        place = self._targets.pop(number)
        if score >= self._fitness[rung][place]:
            self._members[rung][place] = (point + 1.0) / 2.0
            self._fitness[rung][place] = score

    @property
    def populations(self) -> list[Array]:
        """The members of each rung, (m, n) points of the unit cube."""
        return [members.copy() for members in self._members]
