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

    The first bracket is one of Hyperband. After it, a place of a rung is tried with a trial point:
    the target is the member of this place, and mutants are made of the configurations that came up
    from the rung below, or of the rung's own population where the bracket starts. Where fewer than
    three came up, members of all rungs are added. A trial point that is at least as good replaces
    its target.

    A population is as large as the largest number of configurations that a bracket has on its rung,
    as in the authors' implementation. Appendix C's 20 members are those of DE alone.
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

    def _most(self) -> list[int]:
        """Return the largest number of configurations that a bracket has on each rung."""
        found = [0] * len(self.rungs)
        for turn in range(len(self.rungs)):
            bracket = self._bracket(turn)
            number = len(bracket.waiting)
            for rung in range(bracket.rung, len(self.rungs)):
                found[rung] = max(found[rung], number)
                number //= self._eta
        return found

    def _point(self, bracket: Bracket, place: int, kept: Point | None) -> Point:
        rung = bracket.rung
        if bracket.first:
            if kept is None:
                return rounded(2.0 * self._members[rung][place] - 1.0)
            return kept
        came = (np.array(bracket.pool) + 1.0) / 2.0 if bracket.pool else self._members[rung]
        rng = self._evolution_rng
        if len(came) < PARENTS:
            everyone = np.concatenate(self._members)
            more = rng.choice(len(everyone), PARENTS - len(came), replace=False)
            came = np.concatenate([came, everyone[more]])
        point = self._evolution.offspring(self._members[rung][place], came, rng)
        return rounded(2.0 * point - 1.0)

    def _see(self, rung: int, place: int, point: Point, score: float) -> None:
        if score >= self._fitness[rung][place]:
            self._members[rung][place] = (point + 1.0) / 2.0
            self._fitness[rung][place] = score

    @property
    def populations(self) -> list[Array]:
        """The members of each rung, (m, n) points of the unit cube."""
        return [members.copy() for members in self._members]
