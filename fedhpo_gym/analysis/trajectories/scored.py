"""From run records to the scores of vector rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.records import RunRecord
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

    Trials that do not keep the constraints are left out: no front has them.

    Attributes:
        time_s: (N,) simulated seconds when a trial was paid for.
        errors: (N, k) negated rewards; lower is better. Under noise, what the objectives truly are,
            negated where higher is better, and cut off at the bounds of the rewards.
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
        is_noisy = any(step.truth for step in steps)
        found = cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            _true_errors(run, rewards) if is_noisy else -rewards,
            np.array([level_of(step.fidelity) for step in steps], dtype=np.float64),
            names,
            -rewards if is_noisy else None,
        )
        return found._kept(np.array([step.extra.get("violation", 0.0) == 0 for step in steps]))

    def at_level(self, level: float) -> Scored:
        """Return the trials of at least a level."""
        return self._kept(self.level >= level)

    def _kept(self, kept: NDArray[np.bool_]) -> Scored:
        told = None if self.told is None else self.told[kept]
        return Scored(self.time_s[kept], self.errors[kept], self.level[kept], self.names, told)

    def presented(self) -> Numbers:
        """Return (M, k) the errors of the trials that the agent presents as its front."""
        return self.errors[non_dominated(self.errors if self.told is None else self.told)]


def _true_errors(run: RunRecord, rewards: Numbers) -> Numbers:
    """Return (N, k) what the objectives truly are, as errors that end where scores end.

    Raises:
        InvalidArgumentError: rewards are not one per objective.
    """
    names = [*run.steps[0].objectives]
    told = np.array([[step.objectives[n] for n in names] for step in run.steps])
    truth = np.array([[step.true_objectives[n] for n in names] for step in run.steps])
    if told.shape != rewards.shape:
        raise InvalidArgumentError(
            "`reward` of a noisy run must have an entry per objective to be judged, got "
            f"{rewards.shape[1]} for {names}; see agent {run.header.agent!r}, seed "
            f"{run.header.seed}, on {run.header.id}"
        )
    signs = _signs(rewards, told)
    return _cut_off(signs * truth, signs * told, -rewards)


def _signs(rewards: Numbers, told: Numbers) -> Numbers:
    """Return (k,) -1 of what is to be high: scores rise with it, which records do not say else."""
    slopes = ((rewards - rewards[0]) * (told - told[0])).sum(axis=0)
    # A score of what is to be low is its negative, and that of 0 is -0.0.
    still = np.copysign(1.0, rewards[0]) * np.copysign(1.0, told[0])
    return np.where(np.where(slopes == 0, still, slopes) > 0, -1.0, 1.0)


def _cut_off(errors: Numbers, told: Numbers, scored: Numbers) -> Numbers:
    """Return true errors, cut off where the scores of what was told were, if they were."""
    ends = scored.min(axis=0), scored.max(axis=0)
    # Scores are float32 numbers.
    low = np.where(told.min(axis=0) < ends[0] - 1e-6 * np.abs(ends[0]), ends[0], -np.inf)
    high = np.where(told.max(axis=0) > ends[1] + 1e-6 * np.abs(ends[1]), ends[1], np.inf)
    is_cut = np.isclose(np.clip(told, low, high), scored, rtol=1e-6, atol=0.0).all(axis=0)
    return np.where(is_cut, np.clip(errors, low, high), errors)
