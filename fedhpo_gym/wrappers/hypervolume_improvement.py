"""Scalarisation by what a trial adds to the volume that the trials of an episode dominate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.fronts import hypervolume
from fedhpo_gym.wrappers.scalarization import Floats, Points, Rule, Scalarization, Seen, Source


class _Source(Source):
    """Where volumes begin and end: with "truth", at the reference point of its hypervolumes."""

    def find(self, truth: Any) -> tuple[Floats, Floats]:
        if self.kind != "truth":
            return super().find(truth)
        known = truth()
        return self.errors(known.ideal()), self.errors(known.reference())


class HypervolumeImprovementRule(Rule):
    """The volume of the front with a trial, less that without it."""

    def __init__(self, objectives: Sequence[Any], points: Points = "bounds") -> None:
        """See `HypervolumeImprovement`."""
        super().__init__(_Source(objectives, points))
        if self.source.kind == "learned":
            raise InvalidArgumentError(
                "`points` must not be 'learned' for volumes, whose ends would move: use 'bounds', "
                "'truth', or {'ideal': [...], 'nadir': [...]}"
            )

    def value(self, error: Floats, before: Floats, seen: Seen) -> float:
        """See `Rule.value`."""
        return _volume(seen.front, seen) - _volume(before, seen)


def _volume(front: Floats, seen: Seen) -> float:
    alive = seen.nadir > seen.ideal
    if not len(front) or not alive.any():
        return 0.0
    scaled = np.array([seen.normalised(point) for point in front])[:, alive]
    return hypervolume(np.unique(np.maximum(scaled, 0.0), axis=0), np.ones(alive.sum()))


class HypervolumeImprovement(Scalarization):
    """Reward = what the trial adds to the hypervolume of the episode.

    The return of an episode is the share that its front dominates of the box between two points, in
    [0, 1]; it is never worth less to have made one trial more. The points are best and worst
    bounds of the objectives by default. With `points="truth"` they are the ideal point and
    `Truth.reference`, with `{"ideal": [...], "nadir": [...]}` what is given. Exact, by `moocore`.
    """

    rule = HypervolumeImprovementRule

    def __init__(self, env: gym.Env[Any, Any], *, points: Points = "bounds") -> None:
        """Make the reward one number.

        Args:
            env: an environment of an `MO-` id.
            points: the corners of the box; see the class.

        Raises:
            InvalidArgumentError: an argument is out of its range, or `env` is of another kind.
            UnknownNameError: there is no such source of points.
        """
        super().__init__(env, points=points)
