"""Scalarisation by an augmented weighted Chebyshev distance."""

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
    checked_rho,
    checked_weights,
)


class ChebyshevRule(Rule):
    """-(max_i w_i z_i + rho sum_i w_i z_i)."""

    def __init__(
        self,
        objectives: Sequence[Any],
        weights: Sequence[float] | None = None,
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        """See `Chebyshev`."""
        super().__init__(Source(objectives, points))
        self._weights, self._rho = checked_weights(objectives, weights), checked_rho(rho)

    def value(self, error: Floats, before: Floats, seen: Seen) -> float:
        """See `Rule.value`."""
        weighted = self._weights * seen.normalised(error)
        return -float(weighted.max() + self._rho * weighted.sum())


class Chebyshev(Scalarization):
    """Reward = -(max_i w_i z_i + rho sum_i w_i z_i), z the errors from ideal (0) to nadir (1).

    The augmented weighted Chebyshev distance from the ideal point (Steuer and Choo, 1983), as
    ParEGO uses it (Knowles, 2006, Equation 2, rho = 0.05). Every point of a front is best under
    some weights, also in a dent; the sum keeps points away that are only weakly optimal.
    """

    rule = ChebyshevRule

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        weights: Sequence[float] | None = None,
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        """Make the reward one number.

        Args:
            env: an environment of an `MO-` id.
            weights: one per objective, scaled to sum to 1; equal ones by default.
            rho: weight of the sum; 0 leaves the plain distance.
            points: where ideal and nadir point come from; see `scalarization.Source`.

        Raises:
            InvalidArgumentError: an argument is out of its range, or `env` is of another kind.
            UnknownNameError: a name does not exist.
        """
        super().__init__(env, weights=weights, rho=rho, points=points)
