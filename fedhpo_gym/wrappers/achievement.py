"""Scalarisation by what is achieved beyond an aspiration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.wrappers.scalarization import (
    Floats,
    Points,
    Rule,
    Scalarization,
    Seen,
    Source,
    by_name,
    checked_rho,
)


class AchievementRule(Rule):
    """-(max_i (z_i - a_i) + rho sum_i (z_i - a_i))."""

    def __init__(
        self,
        objectives: Sequence[Any],
        aspiration: Mapping[str, float],
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        """See `Achievement`."""
        super().__init__(Source(objectives, points))
        wanted = by_name("aspiration", objectives, aspiration)
        if missing := [one.name for one in objectives if one.name not in wanted]:
            raise InvalidArgumentError(
                f"`aspiration` must have a value of every objective, got none of {missing} in "
                f"{shown(aspiration)}"
            )
        self._aspired = self.source.errors([wanted[one.name] for one in objectives])
        self._rho = checked_rho(rho)

    def value(self, error: Floats, before: Floats, seen: Seen) -> float:
        """See `Rule.value`."""
        lacking = seen.normalised(error) - seen.normalised(self._aspired)
        return -float(lacking.max() + self._rho * lacking.sum())


class Achievement(Scalarization):
    """Reward = -(max_i (z_i - a_i) + rho sum_i (z_i - a_i)).

    The achievement function of Wierzbicki (1980): z are the errors from ideal (0) to nadir (1), a
    those of an aspiration. The reward is positive where the aspiration is exceeded in every
    objective. No aspiration is too high or too low: the best trial is always on the front.
    """

    rule = AchievementRule

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        aspiration: Mapping[str, float],
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        """Make the reward one number.

        Args:
            env: an environment of an `MO-` id.
            aspiration: the value to reach, of every objective, in its unit.
            rho: weight of the sum.
            points: where ideal and nadir point come from; see `scalarization.Source`.

        Raises:
            InvalidArgumentError: an argument is out of its range, or `env` is of another kind.
            UnknownNameError: a name does not exist.
        """
        super().__init__(env, aspiration=aspiration, rho=rho, points=points)
