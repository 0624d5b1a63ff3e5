"""ASHA: successive halving that never waits for a rung to be full.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar, "A system for massively
parallel hyperparameter tuning", MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
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
        # (loss, when it was told, which configuration): sorted, and a heap of what is not promoted.
        self._seen: list[list[tuple[float, int, int]]] = [[] for _ in self.rungs]
        self._staying: list[list[tuple[float, int, int]]] = [[] for _ in self.rungs]
        self._jobs: dict[int, tuple[int, int]] = {}

    def _suggest(self, number: int) -> NDArray[Any]:
        rung, index = self._next()
        self._jobs[number] = (rung, index)
        return self.on_rung(self._points[index], rung)

    def _learn(self, number: int, scores: Array) -> None:
        rung, index = self._jobs.pop(number)
        told = (-float(scores[0]), len(self.results), index)
        insort(self._seen[rung], told)
        heapq.heappush(self._staying[rung], told)

    def _next(self) -> tuple[int, int]:
        for rung in reversed(range(len(self.rungs) - 1)):
            seen, staying = self._seen[rung], self._staying[rung]
            if staying and bisect_left(seen, staying[0]) < len(seen) // self._eta:
                return rung + 1, heapq.heappop(staying)[2]
        width = self.action_space.shape[0] - len(self.fidelities)
        self._points.append(rounded(self._rng.uniform(-1.0, 1.0, width)))
        return 0, len(self._points) - 1
