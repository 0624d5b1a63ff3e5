"""Hyperband: many configurations trained a little, the best third of them three times as long.

Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar, "Hyperband: a novel bandit-based approach to
hyperparameter optimization", JMLR 18 (2018), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.ladder import ROUND, LadderSearch
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Value

Point = NDArray[np.float64]


class Bracket:
    """One round of successive halving: a rung is told entirely before the next one is asked.

    Attributes:
        rung: where it is.
        waiting: configurations to try there; None for one that is still to be drawn.
        start: the rung of its first configurations.
        turn: how many brackets were begun before it.
        over: whether nothing is left to ask, nor will be.
    """

    def __init__(self, rung: int, number: int, top: int, eta: int, turn: int) -> None:
        """Start on a rung with a number of configurations."""
        self.rung, self.start, self.turn, self._top, self._eta = rung, rung, turn, top, eta
        self.waiting: list[Point | None] = [None] * number
        self.over = False
        self._told: list[tuple[float, Point]] = []
        self._open = 0

    def take(self) -> Point | None:
        """Return the next configuration; None for one that is still to be drawn."""
        self._open += 1
        return self.waiting.pop(0)

    def report(self, score: float, point: Point) -> None:
        """Take in what a configuration reached; when the rung is full, the best 1/eta go on."""
        self._told.append((score, point))
        self._open -= 1
        if self.waiting or self._open:
            return
        best = sorted(self._told, key=lambda one: -one[0])[: len(self._told) // self._eta]
        self._told = []
        self.over = not best or self.rung == self._top
        if not self.over:
            self.rung += 1
            self.waiting = [point for _, point in best]


class Hyperband(LadderSearch):
    """Brackets of successive halving over one fidelity, the last coordinate of every action.

    A bracket starts with many configurations on a low rung, or few on a high one; a rung is asked
    for entirely before the best 1/eta of it go on to the next. The brackets take turns, without
    end. Each one takes about as many rounds as any other. Where more trials are asked for than a
    rung has, the next bracket begins.

    Differs from the paper: a bracket that starts s rungs below the top has
    floor((s_max + 1) / (s + 1)) eta^s configurations instead of the ceiling of the unrounded
    number, as in the authors of BOHB's implementation, so that every rung divides by eta.

    Attributes:
        rungs: values of the fidelity, lowest first.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        """Start with the bracket of the most configurations; see `LadderSearch`."""
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        self._rng = stream(self.seed, "hyperband")
        self._brackets: list[Bracket] = []
        self._begun = 0
        self._jobs: dict[int, tuple[Bracket, int, Point]] = {}
        self._seen: list[list[tuple[float, Point]]] = [[] for _ in self.rungs]

    def _suggest(self, number: int) -> NDArray[Any]:
        bracket = next((one for one in self._brackets if one.waiting), None)
        if bracket is None:
            bracket = self._bracket(self._begun)
            self._begun += 1
            self._brackets.append(bracket)
        # A new configuration is drawn when its turn comes: BOHB has learned more by then.
        point = self._point(number, bracket, bracket.take())
        self._jobs[number] = (bracket, bracket.rung, point)
        return self.on_rung(point, bracket.rung)

    def _learn(self, number: int, scores: Array) -> None:
        bracket, rung, point = self._jobs.pop(number)
        score = float(scores[0])
        bracket.report(score, point)
        self._brackets = [one for one in self._brackets if not one.over]
        self._see(number, rung, point, score)

    def _bracket(self, turn: int) -> Bracket:
        """Return the bracket of a turn, counted from 0."""
        start, top = turn % len(self.rungs), len(self.rungs) - 1
        number = (top + 1) // (top - start + 1) * self._eta ** (top - start)
        return Bracket(start, number, top, self._eta, turn)

    def _point(self, number: int, bracket: Bracket, kept: Point | None) -> Point:
        """Return what trial `number` tries, for which `kept` came up, if anything did."""
        return self._draw(bracket.rung) if kept is None else kept

    def _draw(self, rung: int) -> Point:
        """Return a new configuration; here, from the prior of the space."""
        width = self.action_space.shape[0] - len(self.fidelities)
        return rounded(self._rng.uniform(-1.0, 1.0, width))

    def _see(self, number: int, rung: int, point: Point, score: float) -> None:
        """Take in what trial `number` reached on a rung: agents that model it draw from it."""
        self._seen[rung].append((score, point))


class SuccessiveHalving(Hyperband):
    """The first bracket of Hyperband, of the most configurations, again and again.

    Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS 2016. Differs from the paper: eta is 3 instead of 2.
    """

    def _bracket(self, turn: int) -> Bracket:
        top = len(self.rungs) - 1
        return Bracket(0, self._eta**top, top, self._eta, turn)


def rounded(point: NDArray[np.float64]) -> Point:
    """Return the point that its action stands for: actions are float32."""
    return point.astype(np.float32).astype(np.float64)
