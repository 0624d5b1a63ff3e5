"""PriorBand: Hyperband that samples from an expert's belief, for as long as that pays.

Mallik, Bergman, Hvarfner, Stoll, Janowski, Lindauer, Nardi, Hutter, "PriorBand: practical
hyperparameter optimization in the age of deep learning", NeurIPS 2023, Section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedhpo_gym.agents.hyperband import Hyperband, Point, rounded
from fedhpo_gym.agents.ladder import ROUND
from fedhpo_gym.agents.priors import Belief
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.space.dimension import Value

WIDTH = 0.5
"""Standard deviation of a belief and of moves, in [-1, 1]: a quarter of the range."""
MOVED = 0.5
"""Chance that a coordinate of the incumbent is moved."""


class PriorBand(Hyperband):
    """Draws from the space, from a belief, or around the incumbent; the shares follow what pays.

    On rung r, counted from 0, a draw is uniform with probability 1 / (1 + eta^r). The rest belongs
    to the belief until a configuration has been on the highest rung, a rung has seen eta of them,
    and as many rounds were spent as one bracket of successive halving takes. From then on belief
    and incumbent share it by how likely each makes the best configurations seen, the better ones
    counting more. The incumbent is the best that was seen on any rung.

    As in the authors' code (NePS), the incumbent counts as a truncated normal distribution of the
    belief's width. Differs from that code: its rules of when the incumbent counts are taken as its
    comments say them, since what it counts as spent leaves out the lowest rung.

    Args:
        problem: what it acts on.
        prior: the configuration that an expert believes in; see `agents.priors.expert_prior`. By
            default the middle of the space.
        low: see `LadderSearch`.
        high: see `LadderSearch`.
        eta: see `LadderSearch`.
        fidelities: see `LadderSearch`.

    Raises:
        InvalidArgumentError: `prior` lacks a hyperparameter, or names a value that is not legal.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        prior: Mapping[str, Any] | None = None,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        chosen = tuple(d for d in problem.search_space.dimensions if d.name not in self.fidelities)
        space = SearchSpace(chosen)
        if prior is not None and set(prior) != set(space.names):
            raise InvalidArgumentError(
                f"`prior` must name {list(space.names)}, got {sorted(prior)}."
            )
        centre = np.zeros(len(space)) if prior is None else space.encode(prior)
        self._belief = Belief(np.asarray(centre, dtype=np.float64), WIDTH)
        self._choices = stream(self.seed, "priorband")
        self._steps = np.diff(np.array(self.rungs, dtype=np.float64), prepend=0.0)
        top = len(self.rungs) - 1
        self._bracket_cost = float(self._steps @ [self._eta ** (top - r) for r in range(top + 1)])

    def _draw(self, rung: int) -> Point:
        rng = self._choices
        uniform, believed = self._shares(rung)
        chance = rng.random()
        if chance < uniform:
            return super()._draw(rung)
        if chance < uniform + believed:
            return rounded(self._belief.draw(rng))
        best = self._incumbent()
        moved = Belief(best, WIDTH).draw(rng)
        return rounded(np.where(rng.random(len(best)) < MOVED, moved, best))

    def _shares(self, rung: int) -> tuple[float, float]:
        """Return the chances of a uniform draw and of one from the belief."""
        uniform = 1.0 / (1.0 + self._eta**rung)
        enough = [seen for seen in self._seen if len(seen) >= self._eta]
        if not self._seen[-1] or not enough or self._spent() < self._bracket_cost:
            return uniform, 1.0 - uniform
        order = sorted(enough[-1], key=lambda one: -one[0])[: len(enough[-1]) // self._eta]
        points = np.array([point for _, point in order])
        weights = np.arange(len(points), 0, -1, dtype=np.float64)
        for_belief = float(weights @ self._belief.density(points))
        for_incumbent = float(weights @ Belief(self._incumbent(), WIDTH).density(points))
        share = for_belief / (for_belief + for_incumbent) if for_belief + for_incumbent else 0.5
        return uniform, (1.0 - uniform) * share

    def _incumbent(self) -> Point:
        """Return the best configuration of all rungs."""
        return max((one for seen in self._seen for one in seen), key=lambda one: one[0])[1]

    def _spent(self) -> float:
        """Return the steps of the ladder that were paid, as if every trial had been resumed."""
        return float(self._steps @ [len(seen) for seen in self._seen])
