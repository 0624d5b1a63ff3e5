"""From evaluations to rows of numbers: everything a step says that does not depend on the past."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.batched.layout import Layout
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.telling import ValuesOf, tell
from fedhpo_gym.evaluation.constraints import read_constraints
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.objectives import Spent

TIME_S, ROUNDS, ERROR, SHOWN, VIOLATION, SCORES = range(6)
"""Columns of the numbers: simulated seconds and rounds paid for (a ledger fills them in), unclipped
error of the first objective, the same as an observation shows it, total violation of constraints;
then scores, then values of the objectives, and under noise what these truly are."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """What B evaluations say.

    Attributes:
        seen: (B, size) their part of the observations.
        numbers: (B, columns) what decides the step; see `Scorer`.
        details: (B, 4 + S) what only `info` says: test metrics, whether any of the S seeds
            diverged, and the best round of each seed.
    """

    seen: NDArray[np.float32]
    numbers: NDArray[np.float64]
    details: NDArray[np.float64]

    def take(self, rows: NDArray[np.integer]) -> ScoredRows:
        """Return some of the rows, in this order."""
        return ScoredRows(self.seen[rows], self.numbers[rows], self.details[rows])


class Scorer:
    """Computes the rows of evaluations.

    Attributes:
        scores: columns of the objectives' scores.
        values: columns of the objectives' values.
        truth: columns of their values without noise; the same columns where there is none.
        width: number of columns.
    """

    def __init__(self, setup: TrialSetup, layout: Layout) -> None:
        """Take the objectives of a setup, and where the entries of its observations lie."""
        self._setup = setup
        self._layout = layout
        self._low, self._high = np.zeros((2, layout.size))
        for name, box in setup.observation_space.items():
            assert isinstance(box, gym.spaces.Box)  # noqa: S101 - our own invariant
            columns = layout.columns[name]
            self._low[columns], self._high[columns] = box.low, box.high
        count = len(setup.objectives)
        self.scores = slice(SCORES, SCORES + count)
        self.values = slice(SCORES + count, SCORES + 2 * count)
        self.truth, self.width = self.values, self.values.stop
        if setup.noise is not None:
            self.truth, self.width = slice(self.width, self.width + count), self.width + count

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """What rows depend on, besides the evaluation: equal rules give equal rows."""
        limits = read_constraints(self._setup.objectives, self._setup.constraints)
        return self._setup.objectives, tuple(self._layout.columns), tuple(limits.items())

    @property
    def can_batch(self) -> bool:
        """Whether all objectives have `compute_many`."""
        return all(objective.compute_many for objective in self._setup.objectives)

    def values_of(self, evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        """Return (B, objectives) values; `can_batch` must be true."""
        values = np.empty((len(evaluations.best), len(self._setup.objectives)))
        for column, objective in enumerate(self._setup.objectives):
            if objective.compute_many is not None:
                values[:, column] = objective.compute_many(evaluations, spent)
        return values

    def rows(
        self,
        evaluations: Evaluations,
        spent: Spent,
        values_of: ValuesOf | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        known: ScoredRows | None = None,
    ) -> ScoredRows:
        """Return the rows of B evaluations, bit for bit those of each alone; costs are left 0.

        Args:
            evaluations: the evaluations.
            spent: what they spend.
            values_of: takes the place of `values_of` of this scorer where `can_batch` is false.
            rngs: the random stream of each, where evaluations are noisy; without them rows tell
                the truth.
            known: rows that tell the truth of the same evaluations, where they are known.
        """
        find = values_of or self.values_of
        values = truth = find(evaluations, spent) if known is None else known.numbers[:, self.truth]
        if rngs is None or self._setup.noise is None:
            entries = observation.measure(self._setup.task, evaluations, spent.privacy)
        else:
            values, entries = tell(self._setup, evaluations, truth, spent, rngs, find)
        shown = np.zeros((len(values), self._layout.size))
        self._layout.fill(shown, entries)
        # Losses have no bound, and rounding to float32 may step over one.
        np.minimum(np.maximum(shown, self._low, out=shown), self._high, out=shown)
        seen = shown.astype(np.float32)
        objectives = self._setup.objectives
        errors = np.empty_like(values)
        for column, objective in enumerate(objectives):
            errors[:, column] = objective.errors(values[:, column])
        numbers = np.zeros((len(values), self.width))
        numbers[:, ERROR] = objectives[0].unclipped_errors(values[:, 0])
        numbers[:, SHOWN] = errors[:, 0]
        numbers[:, VIOLATION] = self._setup.violations(values)
        # What an environment returns is float32; a scalarisation computes with what it gets.
        numbers[:, self.scores] = -errors.astype(np.float32)
        numbers[:, self.values] = values
        numbers[:, self.truth] = truth
        details = self._details(evaluations) if known is None else known.details
        return ScoredRows(seen, numbers, details)

    def _details(self, evaluations: Evaluations) -> NDArray[np.float64]:
        names, best_round = self._setup.task.metric_names, evaluations.best_round
        details = np.empty((len(best_round), len(names) + 1 + best_round.shape[1]))
        for column, name in enumerate(names):
            details[:, column] = evaluations.mean("test", name)
        details[:, len(names)] = evaluations.has_diverged
        details[:, len(names) + 1 :] = best_round
        return details
