"""Hyperband: many configurations trained a little, the best third of them three times as long.

Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar, "Hyperband: a novel bandit-based approach to
hyperparameter optimization", JMLR 18 (2018), Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, score_of
from fedhpo_gym.agents.pending import Pending
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Dimension, Value

Point = NDArray[np.float64]


@dataclass(eq=False)
class _Bracket:
    """Where a bracket stands.

    Attributes:
        rung: the rung that it is on.
        size: configurations on the rung.
        waiting: those that nobody asked for yet; None for one that is still to be drawn.
        told: those that were told, with their scores.
    """

    rung: int
    size: int
    waiting: list[Point | None]
    told: list[tuple[float, Point]]


class Hyperband(Agent):
    """Brackets of successive halving over one fidelity, the last coordinate of every action.

    A bracket starts with many configurations on a low rung, or few on a high one; a rung is asked
    for entirely before the best 1/eta of it go on to the next. The brackets take turns, without
    end. Each one takes about as many rounds as any other.

    With several workers a rung may still be running when a worker is free; it then begins the next
    bracket, as in the authors of BOHB's implementation, and older brackets go first.

    Differs from the paper: a bracket that starts s rungs below the top has
    floor((s_max + 1) / (s + 1)) eta^s configurations instead of the ceiling of the unrounded
    number, as in the authors of BOHB's implementation, so that every rung divides by eta.

    Attributes:
        rungs: values of the fidelity, lowest first.
    """

    acts_on = ("trial",)
    fidelity = "round"
    rewards = "scalar"

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
    ) -> None:
        """Start with the bracket of the most configurations.

        Args:
            problem: at least two coordinates in [-1, 1], of which `fidelity` is the last; the
                seed decides which configurations are drawn.
            low: the lowest rung is at least this; by default the fidelity's.
            high: the highest rung; by default the fidelity's.
            eta: a rung is this many times the one below it.

        Raises:
            InvalidArgumentError: an argument breaks one of these rules.
            OffGridError: the fidelity has no such value as a rung.
        """
        super().__init__(problem)
        dimension = problem.fidelities[self.fidelity]
        box = self.action_space
        if box.shape[0] < 2 or (box.low != -1).any() or (box.high != 1).any():
            raise InvalidArgumentError(
                "`action_space` must be a Box in [-1, 1] of a configuration's coordinates and then "
                f"the fidelity's, got {box}"
            )
        base = as_integer(eta)
        if base is None or base < 2:
            raise InvalidArgumentError(f"`eta` must be an integer of at least 2, got {eta!r}")
        eta = base
        self.rungs = _rungs(dimension, low, high, eta)
        self._coordinates = [dimension.encode(rung) for rung in self.rungs]
        self._eta = eta
        self._rng = stream(self.seed, "hyperband")
        self._start = 0
        self._brackets: list[_Bracket] = []
        self._asked: Pending[tuple[_Bracket, Point]] = Pending()

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        bracket = next((one for one in self._brackets if one.waiting), None) or self._begin()
        # A new configuration is drawn when its turn comes: BOHB has learned more by then.
        kept = bracket.waiting.pop(0)
        point = self._draw() if kept is None else kept
        action = np.array([*point, self._coordinates[bracket.rung]], dtype=np.float32)
        return self._asked.put(action, (bracket, point))

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        score = score_of(reward, info)
        bracket, point = self._asked.take(action)
        bracket.told.append((score, point))
        self._learn(bracket.rung, point, score)
        if len(bracket.told) == bracket.size:
            self._climb(bracket)

    def _climb(self, bracket: _Bracket) -> None:
        """Go on to the next rung of a bracket all of whose rung was told, if there is one."""
        best = sorted(bracket.told, key=lambda one: -one[0])[: bracket.size // self._eta]
        if best and bracket.rung + 1 < len(self.rungs):
            bracket.rung += 1
            bracket.size, bracket.told = len(best), []
            bracket.waiting = [point for _, point in best]
        else:
            self._brackets.remove(bracket)

    def _begin(self) -> _Bracket:
        """Begin the next bracket."""
        top = len(self.rungs) - 1
        below = top - self._start
        number = (top + 1) // (below + 1) * self._eta**below
        bracket = _Bracket(self._start, number, [None] * number, [])
        self._brackets.append(bracket)
        self._start = (self._start + 1) % len(self.rungs)
        return bracket

    def _draw(self) -> Point:
        """Return a new configuration; here, from the prior of the space."""
        width = self.action_space.shape[0] - 1
        return self._rng.uniform(-1.0, 1.0, width).astype(np.float32).astype(np.float64)

    def _learn(self, rung: int, point: Point, score: float) -> None:
        """Take in what a configuration reached on a rung; here, nothing more is made of it."""


def _rungs(
    fidelity: Dimension, low: Value | None, high: Value | None, eta: int
) -> tuple[Value, ...]:
    bottom = fidelity.validate(fidelity.low if low is None else low, "low")
    top = fidelity.validate(fidelity.high if high is None else high, "high")
    if not 0 < bottom <= top:
        raise InvalidArgumentError(
            f"`low` must be positive and at most `high`, got low={bottom}, high={top}"
        )
    number = math.floor(math.log(top / bottom, eta) + 1e-9) + 1
    wanted = [top / eta**below for below in reversed(range(number))]
    if fidelity.kind == "int":
        wanted = [math.floor(rung + 0.5) for rung in wanted]
    return tuple(fidelity.validate(rung, "rungs") for rung in wanted)
