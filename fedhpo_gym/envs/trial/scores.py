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
from fedhpo_gym.envs.trial.telling import tell
from fedhpo_gym.evaluation.constraints import read_constraints
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import Spent, values_of

TIME_S, ROUNDS, ERROR, SHOWN, VIOLATION, SCORES = range(6)
"""Columns of the numbers: simulated seconds and rounds, unclipped error of the first objective, the
same as an observation shows it, total violation of constraints; then scores, then values of the
objectives, under noise what these truly are, and what only `info` says."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """What B evaluations say.

    Attributes:
        seen: (B, size) their part of the observations.
        numbers: (B, columns) all other numbers; see `Scorer`.
    """

    seen: NDArray[np.float32]
    numbers: NDArray[np.float64]

    def take(self, rows: NDArray[np.integer]) -> ScoredRows:
        """Return some of the rows, in this order."""
        return ScoredRows(self.seen.take(rows, axis=0), self.numbers.take(rows, axis=0))


class Scorer:
    """Computes the rows of evaluations.

    Attributes:
        scores: columns of the objectives' scores.
        values: columns of the objectives' values.
        truth: columns of their values without noise; the same columns where there is none.
        details: columns of what only `info` says: test metrics, whether any of the S seeds
            diverged, and the best round of each seed.
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
        self.truth = self.values
        if setup.noise is not None:
            self.truth = slice(self.values.stop, self.values.stop + count)
        number = len(setup.task.metric_names) + 1 + len(setup.backend.seeds)
        self.width = self.truth.stop + number
        self.details = slice(self.truth.stop, self.width)

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """What rows depend on, besides the evaluation: equal rules give equal rows."""
        limits = read_constraints(self._setup.objectives, self._setup.constraints)
        return self._setup.objectives, tuple(self._layout.columns), tuple(limits.items())

    def rows(
        self,
        evaluations: Evaluations,
        spent: Spent,
        times_s: NDArray[np.float64],
        rngs: Sequence[np.random.Generator] | None = None,
        truth: NDArray[np.float64] | None = None,
    ) -> ScoredRows:
        """Return the rows of B evaluations, bit for bit those of each alone.

        Args:
            evaluations: the evaluations.
            spent: what they spend.
            times_s: (B,) simulated seconds of all their rounds.
            rngs: the random stream of each, where evaluations are noisy; without them rows tell
                the truth.
            truth: (B, objectives) what the values truly are, where it is known.
        """
        objectives = self._setup.objectives
        if truth is None:
            truth = values_of(objectives, evaluations, spent)
        if rngs is None or self._setup.noise is None:
            values = truth
            entries = observation.measure(self._setup.task, evaluations, spent.privacy)
        else:
            values, entries = tell(self._setup, evaluations, truth, spent, rngs)
        shown = np.zeros((len(values), self._layout.size))
        self._layout.fill(shown, entries)
        # Losses have no bound, and rounding to float32 may step over one.
        np.minimum(np.maximum(shown, self._low, out=shown), self._high, out=shown)
        seen = shown.astype(np.float32)
        errors = np.empty_like(values)
        for column, objective in enumerate(objectives):
            errors[:, column] = objective.errors(values[:, column])
        numbers = np.zeros((len(values), self.width))
        numbers[:, TIME_S], numbers[:, ROUNDS] = times_s, evaluations.fidelity["round"]
        numbers[:, ERROR] = objectives[0].unclipped_errors(values[:, 0])
        numbers[:, SHOWN] = errors[:, 0]
        numbers[:, VIOLATION] = self._setup.violations(values)
        # What an environment returns is float32; a scalarisation computes with what it gets.
        numbers[:, self.scores] = -errors.astype(np.float32)
        numbers[:, self.values] = values
        numbers[:, self.truth] = truth
        self._tell_details(numbers[:, self.details], evaluations)
        return ScoredRows(seen, numbers)

    def _tell_details(self, details: NDArray[np.float64], evaluations: Evaluations) -> None:
        names = self._setup.task.metric_names
        for column, name in enumerate(names):
            details[:, column] = evaluations.mean("test", name)
        details[:, len(names)] = evaluations.has_diverged
        details[:, len(names) + 1 :] = evaluations.best_round
