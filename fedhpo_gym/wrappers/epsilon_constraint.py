"""Scalarisation by one objective, under hard limits of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.wrappers.scalarization import Floats, Rule, Scalarization, Seen, Source, by_name


class EpsilonConstraintRule(Rule):
    """-z_k where no limit is exceeded, else -(1 + v)."""

    def __init__(
        self,
        objectives: Sequence[Any],
        limits: Mapping[str, float],
        objective: str | None = None,
    ) -> None:
        """See `EpsilonConstraint`."""
        super().__init__(Source(objectives, "bounds"))
        names = [one.name for one in objectives]
        if objective is not None and objective not in names:
            raise unknown_name("`objective`", str(objective), names)
        self._index = 0 if objective is None else names.index(objective)
        self._limits = np.full(len(names), np.inf)
        for name, limit in by_name("limits", objectives, limits).items():
            index = names.index(name)
            if index == self._index:
                raise InvalidArgumentError(
                    f"`limits` must be of other objectives than the one that is optimised, "
                    f"{name!r}, got {shown(limits)}"
                )
            self._limits[index] = objectives[index].limit_error(limit)

    def value(self, error: Floats, before: Floats, seen: Seen) -> float:
        """See `Rule.value`."""
        excess = np.maximum(error - self._limits, 0.0) / (seen.nadir - seen.ideal)
        if excess.any():
            return -1.0 - float(excess.sum())
        return -float(seen.normalised(error)[self._index])


class EpsilonConstraint(Scalarization):
    """Reward = -z_k where no limit of another objective is exceeded, else -(1 + v).

    The epsilon-constraint method (Haimes, Lasdon and Wismer, 1971): z_k is the error of one
    objective within its bounds, in [0, 1], and v the sum of what exceeds the limits, in units of
    the bounds. So no trial that exceeds a limit is better than one that keeps all, and of those
    that exceed limits the nearest is best. `ScalarizePenalty` is the soft form.
    """

    rule = EpsilonConstraintRule

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        limits: Mapping[str, float],
        objective: str | None = None,
    ) -> None:
        """Make the reward one number.

        Args:
            env: an environment of an `MO-` id.
            limits: the worst value that is allowed, by objective, in its unit.
            objective: what is optimised; the first objective by default.

        Raises:
            InvalidArgumentError: an argument is out of its range, or `env` is of another kind.
            UnknownNameError: a name does not exist.
        """
        super().__init__(env, limits=limits, objective=objective)
