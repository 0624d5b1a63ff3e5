"""What an agent sees: flat dictionaries of finite float32 arrays."""

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym import objectives
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.tasks import Problem, Task
from fedhpo_gym.tasks.privacy import is_private

MAX_TIME_S = 1e30
MAX_TRIALS = 1e9
TUNING = "tuning_privacy"


def box(low: float, high: float, size: int) -> gym.spaces.Box:
    """Return the space of one entry of an observation: (size,) numbers within bounds."""
    return gym.spaces.Box(low, high, (size,), np.float32)


def trial_observation_space(
    problem: Problem,
    action_size: int,
    objective: objectives.Objective,
    statistics: int = 0,
    tuning: bool = False,
) -> gym.spaces.Dict:
    """Return the observation space of a problem."""
    splits = len(problem.seen_splits)
    return gym.spaces.Dict(
        {
            **{metric.name: box(*metric.bounds, splits) for metric in problem.metrics},
            "fairness": box(0.0, 1.0, len(objectives.FAIRNESS_NAMES)),
            "privacy": box(0.0, objectives.CAP, len(objectives.PRIVACY_NAMES)),
            "elapsed_time": box(0.0, MAX_TIME_S, 1),
            "trials": box(0.0, MAX_TRIALS, 1),
            "incumbent": box(-1.0, 1.0, action_size),
            "incumbent_value": box(*objective.error_bounds, 1),
            **({TUNING: box(0.0, objectives.CAP, len(objectives.PRIVACY_NAMES))} if tuning else {}),
            **({"instance": box(0.0, 1.0, statistics)} if statistics else {}),
        }
    )


def empty(problem: Problem, spaces: gym.spaces.Dict) -> dict[str, NDArray[np.float32]]:
    """Return the observation before the first trial: zeros, and the worst metrics."""
    worst = {metric.name: metric.worst for metric in problem.metrics}
    worst["incumbent_value"] = np.inf
    return {
        name: inside(spaces, name, np.full(box.shape or (), worst.get(name, 0.0)))
        for name, box in spaces.items()
    }


def measured_entries(
    problem: Problem,
    evaluations: Evaluations,
    privacy: objectives.PrivacyLedger | objectives.PrivacyLedgers,
) -> dict[str, NDArray[np.float64]]:
    """Return what observations say about B trials alone, (B, size) or (size,), unclipped."""
    raw = {
        metric.name: objectives.performances(
            evaluations, problem.seen_splits, metric.name, metric.worst
        )
        for metric in problem.metrics
    }
    raw.update(fairness=objectives.client_fairness(evaluations), privacy=privacy.vector())
    return raw


def inside(spaces: gym.spaces.Dict, name: str, value: ArrayLike) -> NDArray[np.float32]:
    """Clip (..., size) values: losses have no bound, and rounding to float32 may step over one."""
    box = spaces[name]
    assert isinstance(box, gym.spaces.Box)  # noqa: S101 - our own invariant
    clipped: NDArray[np.float32] = np.clip(value, box.low, box.high).astype(np.float32)
    return clipped


def is_counted(task: Task) -> bool:
    """Return whether the trials of a task are added up: version 1 and later, where noise is added.

    Version 0 shows what it showed.
    """
    return task.version >= 1 and is_private(task.algorithm)
