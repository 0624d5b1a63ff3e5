"""ASHA: successive halving that never waits for a rung to be full.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar, "A system for massively
parallel hyperparameter tuning", MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from fedhpo_gym.agents.hyperband import Point, rounded
from fedhpo_gym.agents.ladder import ROUND, LadderSearch
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Value


class ASHA(LadderSearch):
    """Promotes whatever is in the best 1/eta of its rung so far, from the highest rung down.

    Where nothing can be promoted, a new configuration starts on the lowest rung. Any number of
    trials may be in flight.
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
        """Start with empty rungs; see `LadderSearch`."""
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        self._rng = stream(self.seed, "asha")
        self._points: list[Point] = []
        self._seen: list[list[tuple[float, int]]] = [[] for _ in self.rungs]
        self._promoted: list[set[int]] = [set() for _ in self.rungs]
        self._jobs: dict[int, tuple[int, int]] = {}

    def _suggest(self, number: int) -> NDArray[Any]:
        rung, index = self._next()
        self._jobs[number] = (rung, index)
        return self.on_rung(self._points[index], rung)

    def _learn(self, number: int, scores: Array) -> None:
        rung, index = self._jobs.pop(number)
        self._seen[rung].append((float(scores[0]), index))

    def _next(self) -> tuple[int, int]:
        for rung in reversed(range(len(self.rungs) - 1)):
            seen = self._seen[rung]
            best = sorted(seen, key=lambda one: -one[0])[: len(seen) // self._eta]
            for _, index in best:
                if index not in self._promoted[rung]:
                    self._promoted[rung].add(index)
                    return rung + 1, index
        width = self.action_space.shape[0] - len(self.fidelities)
        self._points.append(rounded(self._rng.uniform(-1.0, 1.0, width)))
        return 0, len(self._points) - 1
