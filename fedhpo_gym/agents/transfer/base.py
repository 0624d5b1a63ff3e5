"""What optimizers that transfer share: candidates, and a preference among them."""

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.seeding import stream

DRAWN, NEAR = 500, 5
"""Draws from the prior among which a suggestion is chosen, and trials whose neighbours are."""


class Known(NamedTuple):
    """Trials of a task as models see them."""

    points: Floats  # (n, F) `SearchSpace.features`, in [0, 1]
    scores: Floats  # (n,) higher is better


class TransferSearch(TrialSearch):
    """Chooses the candidate that it prefers, given its own trials and those of source tasks.

    Where the problem says what may be chosen, as pools do, these are the candidates. Else they are
    draws from the prior, neighbours of the best trials, and the best of each source task. Without
    source tasks, a method is what it falls back to. The first `initial` trials are draws unless
    the method can do without.

    Attributes:
        initial: trials of its own that a method needs before it prefers anything.
        eager: whether it needs no trial of its own where it has sources.
    """

    transfers = True
    initial: ClassVar[int] = 5
    eager: ClassVar[bool] = False
    replays = False

    @abstractmethod
    def prefer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        """Return how much each of (c, F) candidates is preferred, (c,); the highest is chosen."""

    @property
    def needs(self) -> int:
        """Trials of its own that it needs before it prefers anything."""
        return 0 if self.eager and self.sources else self.initial

    @cached_property
    def sources(self) -> tuple[Known, ...]:
        """The source tasks, as models see them."""
        space = self.problem.search_space
        return tuple(
            Known(space.features(task.actions), np.asarray(task.scores, float))
            for task in self.problem.source_tasks
            if len(task.scores)
        )

    def _suggest(self, number: int) -> NDArray[Any]:
        rng = stream(self.seed, "transfer", number)
        actions, scores = self.told()
        candidates = self._drawn(rng, actions, scores)
        if len(actions) < self.needs:
            return self._first_new(candidates, rng.permutation(len(candidates)))
        space = self.problem.search_space
        own = Known(space.features(actions), scores[:, 0])
        preference = self.prefer(own, space.features(candidates), rng)
        return self._first_new(candidates, np.argsort(-preference, kind="stable"))

    def _first_new(self, candidates: NDArray[np.float32], order: NDArray[np.intp]) -> NDArray[Any]:
        """Return the first candidate in an order that was not asked yet, or the first of all."""
        asked = {action.tobytes() for action in self.actions}
        found = (candidates[i] for i in order.tolist() if candidates[i].tobytes() not in asked)
        return next(found, candidates[order[0]])

    def _drawn(self, rng: np.random.Generator, actions: Floats, scores: Floats) -> NDArray[Any]:
        """Return (c, n) actions to choose from."""
        pool = self.problem.candidates() if self.problem.candidates is not None else None
        if pool is not None:
            return pool
        width = self.action_space.shape[0]
        parts = [rng.random((DRAWN, width))]
        if len(actions):
            best = self.to_unit(actions[np.argsort(-scores[:, 0], kind="stable")[:NEAR]])
            centres = best[rng.integers(len(best), size=DRAWN)]
            moved = rng.random(centres.shape) < max(1.0 / width, 0.2)
            steps = np.where(moved, 0.2 * rng.standard_normal(centres.shape), 0.0)
            parts.append(np.clip(centres + steps, 0.0, 1.0))
        places = self.from_unit(self.on_grid(np.concatenate(parts)))
        sources = (task for task in self.problem.source_tasks if len(task.scores))
        known = [task.actions[task.scores.argmax()] for task in sources]
        return np.concatenate([places, np.array(known, np.float32).reshape(-1, width)])
