"""The base of optimizers that transfer: candidates, and a preference among them."""

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.seeding import stream

DRAWN, NEAR = 500, 5
"""Candidates drawn from the prior, and best trials whose neighbours are candidates."""


class ObservedData(NamedTuple):
    """Trials of a task as features and scores."""

    points: Floats  # (n, F) `SearchSpace.features`, in [0, 1]
    scores: Floats  # (n,) higher is better


class TransferSearch(TrialSearch):
    """Chooses the candidate that it prefers, given its own trials and those of source tasks.

    Where the problem has candidates, as pools do, they are used. Else candidates are draws from the
    prior, neighbours of the best trials, and the best of each source task. Without source tasks, a
    method uses its fallback. The first `initial` trials are draws, unless the method needs none.

    Attributes:
        initial: trials of its own that a method needs before it prefers anything.
        eager: whether it needs no trial of its own where it has sources.
    """

    transfers = True
    initial: ClassVar[int] = 5
    eager: ClassVar[bool] = False
    replays = False

    @abstractmethod
    def prefer(self, trials: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        """Return how much each of (c, F) candidates is preferred, (c,); the highest is chosen."""

    @property
    def needs(self) -> int:
        """Trials of its own that it needs before it prefers anything."""
        return 0 if self.eager and self.sources else self.initial

    @cached_property
    def sources(self) -> tuple[ObservedData, ...]:
        """The source tasks, as models see them."""
        space = self.problem.search_space
        return tuple(
            ObservedData(space.features(task.actions), np.asarray(task.scores, float))
            for task in self.problem.source_tasks
            if len(task.scores)
        )

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rng = stream(self.seed, "transfer", trial_index)
        actions, scores = self.reported()
        candidates = self._draw_candidates(rng, actions, scores)
        if len(actions) < self.needs:
            return self._first_new(candidates, rng.permutation(len(candidates)))
        space = self.problem.search_space
        trials = ObservedData(space.features(actions), scores[:, 0])
        preference = self.prefer(trials, space.features(candidates), rng)
        return self._first_new(candidates, np.argsort(-preference, kind="stable"))

    def _first_new(self, candidates: NDArray[np.float32], order: NDArray[np.intp]) -> NDArray[Any]:
        """Return the first candidate in an order that was not asked yet, or the first of all."""
        actions_tried = {action.tobytes() for action in self.actions}
        untried = (
            candidates[i] for i in order.tolist() if candidates[i].tobytes() not in actions_tried
        )
        return next(untried, candidates[order[0]])

    def _draw_candidates(
        self, rng: np.random.Generator, actions: Floats, scores: Floats
    ) -> NDArray[Any]:
        """Return (c, n) actions to choose from."""
        pool = self.problem.candidates() if self.problem.candidates is not None else None
        if pool is not None:
            return pool
        width = self.action_space.shape[0]
        parts = [rng.random((DRAWN, width))]
        if len(actions):
            best = self.to_unit(actions[np.argsort(-scores[:, 0], kind="stable")[:NEAR]])
            centres = best[rng.integers(len(best), size=DRAWN)]
            is_moved = rng.random(centres.shape) < max(1.0 / width, 0.2)
            steps = np.where(is_moved, 0.2 * rng.standard_normal(centres.shape), 0.0)
            parts.append(np.clip(centres + steps, 0.0, 1.0))
        draws = self.from_unit(self.on_grid(np.concatenate(parts)))
        sources = (task for task in self.problem.source_tasks if len(task.scores))
        source_bests = [task.actions[task.scores.argmax()] for task in sources]
        return np.concatenate([draws, np.array(source_bests, np.float32).reshape(-1, width)])
