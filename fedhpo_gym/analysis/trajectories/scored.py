"""From run records to the scores of vector rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.analysis.trajectories.rules import Numbers


def level_of(fidelity: Mapping[str, Any]) -> float:
    """Return how much of a course a fidelity trains: the product of its numbers.

    For rounds times client sample rate it is the number of client updates, over that of a round
    with all clients.
    """
    numbers = [value for value in fidelity.values() if not isinstance(value, str)]
    return float(np.prod(np.array(numbers, dtype=np.float64)))


@dataclass(frozen=True, eq=False)
class Scored:
    """What a run of vector rewards tried, in the order in which it was paid for.

    Attributes:
        time_s: (N,) simulated seconds when a trial was paid for.
        errors: (N, k) negated rewards; lower is better.
        level: (N,) how much of a course was trained, see `level_of`.
        names: (k,) of the objectives.
    """

    time_s: Numbers
    errors: Numbers
    level: Numbers
    names: tuple[str, ...]

    @classmethod
    def of(cls, run: RunRecord) -> Scored | None:
        """Take from a record what is judged; None where its rewards are no vectors, or of steps."""
        steps = run.steps
        if "step" in run.final.incumbent or not isinstance(steps[0].reward, Sequence):
            return None
        rewards = np.array([step.reward for step in steps], dtype=np.float64)
        width, named = rewards.shape[1], tuple(steps[0].objectives)
        names = named if len(named) == width else tuple(f"objective {i + 1}" for i in range(width))
        return cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            -rewards,
            np.array([level_of(step.fidelity) for step in steps], dtype=np.float64),
            names,
        )

    def at_level(self, level: float) -> Scored:
        """Return the trials of at least a level."""
        kept = self.level >= level
        return Scored(self.time_s[kept], self.errors[kept], self.level[kept], self.names)
