"""From run records to the scores of vector rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhpo_gym.analysis.records import RunRecord, StepRecord
from fedhpo_gym.analysis.trajectories.rules import Numbers
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.fronts import non_dominated


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
        errors: (N, k) negated rewards; lower is better. Under noise, what the objectives truly are,
            negated where higher is better.
        level: (N,) how much of a course was trained, see `level_of`.
        names: (k,) of the objectives.
        told: (N, k) errors as the agent saw them, under noise; else None.
    """

    time_s: Numbers
    errors: Numbers
    level: Numbers
    names: tuple[str, ...]
    told: Numbers | None = None

    @classmethod
    def of(cls, run: RunRecord) -> Scored | None:
        """Take from a record what is judged; None where its rewards are no vectors, or of steps."""
        steps = run.steps
        if "step" in run.final.incumbent or not isinstance(steps[0].reward, Sequence):
            return None
        rewards = np.array([step.reward for step in steps], dtype=np.float64)
        width, named = rewards.shape[1], tuple(steps[0].objectives)
        names = named if len(named) == width else tuple(f"objective {i + 1}" for i in range(width))
        is_noisy = steps[0].truth is not None
        return cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            _true_errors(steps, rewards) if is_noisy else -rewards,
            np.array([level_of(step.fidelity) for step in steps], dtype=np.float64),
            names,
            -rewards if is_noisy else None,
        )

    def at_level(self, level: float) -> Scored:
        """Return the trials of at least a level."""
        kept = self.level >= level
        told = None if self.told is None else self.told[kept]
        return Scored(self.time_s[kept], self.errors[kept], self.level[kept], self.names, told)

    def presented(self) -> Numbers:
        """Return (M, k) the errors of the trials that the agent presents as its front."""
        return self.errors[non_dominated(self.errors if self.told is None else self.told)]


def _true_errors(steps: Sequence[StepRecord], rewards: Numbers) -> Numbers:
    """Return (N, k) what the objectives truly are, negated where higher is better.

    Raises:
        InvalidArgumentError: rewards are not one per objective.
    """
    told = np.array([[*step.objectives.values()] for step in steps], dtype=np.float64)
    truth = np.array([[step.true_objectives[n] for n in step.objectives] for step in steps])
    if told.shape != rewards.shape:
        raise InvalidArgumentError(
            "`reward` of a noisy run must have an entry per objective to be judged, got "
            f"{rewards.shape[1]} for {[*steps[0].objectives]}"
        )
    # A score is the negative of what is to be low: records do not say it otherwise.
    return np.where((rewards * told).sum(axis=0) > 0, -truth, truth)
