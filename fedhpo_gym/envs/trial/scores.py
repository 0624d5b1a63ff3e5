"""From evaluations to rows of numbers: everything a step says that does not depend on the past."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.batched.layout import Layout
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives import PrivacyLedger, PrivacyLedgers
from fedhpo_gym.wrappers import ScalarizePenalty

ScoredRows = tuple[NDArray[np.float32], NDArray[np.float64]]

TIME_S, ROUNDS, ERROR, SHOWN, PENALTY = range(5)
"""Columns of the numbers: simulated seconds, rounds paid for, unclipped error of the first
objective, the same as an observation shows it, penalty; then rewards, then objectives' values."""


class Scorer:
    """Computes the two rows of an evaluation: its part of the observation, and numbers.

    Attributes:
        rewards: columns of the reward: one, or one per objective.
        values: columns of the objectives' values.
    """

    def __init__(self, env: TrialEnv, scalarize: ScalarizePenalty | None, layout: Layout) -> None:
        """Take objectives and spaces of an environment, and its scalarisation, if any."""
        self._env = env
        self._spaces = env.observation_space
        self._scalarize = scalarize
        self._layout = layout
        count = len(env.objectives)
        start, middle = PENALTY + 1, PENALTY + 1 + (1 if scalarize else count)
        self.rewards = slice(start, middle)
        self.values = slice(middle, middle + count)

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """What scores depend on, besides the evaluation: equal rules give equal rows."""
        penalty = self._scalarize.rule if self._scalarize else None
        return tuple(o.name for o in self._env.objectives), penalty, tuple(self._layout.columns)

    @property
    def can_batch(self) -> bool:
        """Whether all objectives have `compute_many`."""
        return all(objective.compute_many for objective in self._env.objectives)

    def one(self, evaluation: Evaluation, privacy: PrivacyLedger) -> ScoredRows:
        """Return the rows of one evaluation; its cost is left 0."""
        values = [[o.compute(evaluation, privacy) for o in self._env.objectives]]
        return self._rows(np.array(values), self._measure(evaluation, privacy))

    def many(self, evaluations: Evaluations, privacy: PrivacyLedger | PrivacyLedgers) -> ScoredRows:
        """Return the (B, ...) rows of many evaluations, bit for bit those of each alone.

        `can_batch` must be true.
        """
        computers = [o.compute_many for o in self._env.objectives]
        columns = [compute(evaluations, privacy) for compute in computers if compute]
        return self._rows(np.stack(columns, axis=-1), self._measure(evaluations, privacy))

    def _measure(
        self, evaluation: Evaluation | Evaluations, privacy: PrivacyLedger | PrivacyLedgers
    ) -> Mapping[str, NDArray[np.float32]]:
        assert isinstance(self._spaces, gym.spaces.Dict)  # noqa: S101 - our own invariant
        return observation.measure(self._spaces, evaluation, privacy)

    def _rows(
        self, values: NDArray[np.float64], measured: Mapping[str, NDArray[np.float32]]
    ) -> ScoredRows:
        seen = np.zeros((len(values), self._layout.size), dtype=np.float32)
        self._layout.fill(seen, measured)
        objectives = self._env.objectives
        errors = [o.errors(column) for o, column in zip(objectives, values.T, strict=True)]
        # What TrialEnv returns is float32; ScalarizePenalty computes with what it gets.
        scores = -np.stack(errors, axis=-1).astype(np.float32).astype(np.float64)
        numbers = np.zeros((len(values), self.values.stop))
        numbers[:, ERROR] = objectives[0].unclipped_errors(values[:, 0])
        numbers[:, SHOWN] = errors[0]
        numbers[:, self.values] = values
        if self._scalarize is None:
            numbers[:, self.rewards] = scores
        else:
            numbers[:, PENALTY] = self._scalarize.penalty(scores)
            numbers[:, self.rewards.start] = scores[:, 0] - numbers[:, PENALTY]
        return seen, numbers
