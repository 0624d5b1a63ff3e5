"""How round environments scale what they show and reward: pure functions of arrays.

All take a leading axis of courses, and give every course the bits it would get alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.objectives import MAX_LOSS

Floats = NDArray[np.float64]

DECADES = 3.0
"""Losses are told apart within a factor of 10^3 of chance level, either way."""

NORM_DECADES = 6.0
"""Norms of updates are told apart between 10^-6 and 10^6."""


def decades(loss: NDArray[np.floating], chance: float) -> Floats:
    """Return log10(loss / chance), clipped to +-`DECADES`.

    Args:
        loss: in the unit of the task: nats, or squared stars of ratings.
        chance: that of a guess: `Task.chance_loss`.
    """
    ratio = np.maximum(np.asarray(loss, dtype=np.float64) / chance, 1e-300)
    return np.clip(np.log10(ratio), -DECADES, DECADES)


@dataclass(frozen=True)
class Potential:
    """How good a state of a course is; rewards are its differences, so they add up.

    Attributes:
        measure: of (N,) validation losses in nats, accuracies, and the loss of a guess.
        low: its value for a course that diverged.
        high: its largest value.
    """

    measure: Callable[[Floats, Floats, float], Floats]
    low: float
    high: float


POTENTIALS: Mapping[str, Potential] = MappingProxyType(
    {
        "log_loss": Potential(lambda loss, _, chance: -decades(loss, chance), -DECADES, DECADES),
        "loss": Potential(lambda loss, *_: -np.minimum(loss, MAX_LOSS), -MAX_LOSS, 0.0),
        "accuracy": Potential(lambda _, accuracy, __: accuracy, 0.0, 1.0),
    }
)
"""Potentials by name: minus the decades above chance, minus the loss in nats, the accuracy."""


def client_means(metrics: NDArray[np.floating], num_samples: NDArray[np.integer]) -> Floats:
    """Return (N, splits, metrics) sample-weighted means over the clients of each course.

    Args:
        metrics: (N, clients, splits, metrics).
        num_samples: (N, clients, splits).
    """
    weights = num_samples[..., None].astype(np.float64)
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    return np.asarray((np.where(weights > 0, metrics, 0.0) * shares).sum(axis=1))


def mean_and_spread(values: NDArray[np.floating], chosen: NDArray[np.bool_]) -> Floats:
    """Return (N, 2): mean and standard deviation of the chosen of (N, m) values; 0 of none."""
    count = np.maximum(chosen.sum(axis=1), 1)
    exact = np.where(chosen, np.asarray(values, dtype=np.float64), 0.0)
    mean = exact.sum(axis=1) / count
    squares = np.where(chosen, (exact - mean[:, None]) ** 2, 0.0)
    return np.stack([mean, np.sqrt(squares.sum(axis=1) / count)], axis=1)


def log_norms(norms: NDArray[np.floating]) -> Floats:
    """Return log10 of norms, clipped to +-`NORM_DECADES`."""
    exact = np.maximum(np.asarray(norms, dtype=np.float64), 10.0**-NORM_DECADES)
    clipped: Floats = np.clip(np.log10(exact), -NORM_DECADES, NORM_DECADES)
    return clipped
