"""Scalarisation by a weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from fedhpo_gym.wrappers.scalarization import (
    Floats,
    Points,
    Rule,
    Scalarization,
    Seen,
    Source,
    checked_weights,
)


class WeightedSumRule(Rule):
    """-sum_i w_i z_i."""

    def __init__(
        self,
        objectives: Sequence[Any],
        weights: Sequence[float] | None = None,
        points: Points = "learned",
    ) -> None:
        """See `WeightedSum`."""
        super().__init__(Source(objectives, points))
        self._weights = checked_weights(objectives, weights)

    def value(self, error: Floats, before: Floats, seen: Seen) -> float:
        """See `Rule.value`."""
        return -float((self._weights * seen.normalised(error)).sum())


class WeightedSum(Scalarization):
    """Reward = -sum_i w_i z_i, z the errors from the ideal point (0) to the nadir point (1).

    Its optima are on the convex hull of a front only: points in a dent are best under no weights
    (Miettinen, 1999, Section 3.1).
    """

    rule = WeightedSumRule

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        weights: Sequence[float] | None = None,
        points: Points = "learned",
    ) -> None:
        """Make the reward one number.

        Args:
            env: an environment of an `MO-` id.
            weights: one per objective, scaled to sum to 1; equal ones by default.
            points: where ideal and nadir point come from; see `scalarization.Source`.

        Raises:
            InvalidArgumentError: an argument is out of its range, or `env` is of another kind.
            UnknownNameError: a name does not exist.
        """
        super().__init__(env, weights=weights, points=points)
