"""What the server hears of an evaluation between two steps, where evaluations are noisy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.round.observation import client_means, mean_and_spread
from fedhpo_gym.evaluation.noise import Noise, clients_evaluated
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, NO_PRIVACY, Objective, fairness_vector, values_of
from fedhpo_gym.tasks import Task

TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
LOSS, ACCURACY, F1 = (METRICS.index(metric) for metric in ("loss", "accuracy", "f1"))
VALUES: Final = ("val_loss", "val_error", "fairness_std")
"""Objectives whose values may be told where everything else is withheld."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measurement:
    """An evaluation of N models, as the server hears it and as it is.

    `means` and `truth` are (N, splits, metrics), `spread` (N,), and the others (N, objectives).
    """

    means: Numbers
    spread: Numbers
    truth: Numbers
    measured: Numbers
    true_measured: Numbers


def measurement_of(
    noise: Noise,
    task: Task,
    told: Sequence[str],
    evaluations: int,
    exact: Evaluations,
    truth: Numbers,
    rngs: Sequence[np.random.Generator],
    measured: Sequence[Objective] = (),
) -> Measurement:
    """Return what the server hears of (N, splits, metrics) means over clients.

    Where the noise withholds metrics, all but `told` are those of a guess.
    """
    bounds = np.array([metric.bounds for metric in task.metrics])
    heard = noise.apply(exact, rngs, bounds)
    means = np.array(client_means(heard.best[:, 0], heard.num_samples[:, 0]))
    accuracy, present = heard.best[:, 0, :, VAL, ACCURACY], heard.num_samples[:, 0, :, VAL] > 0
    if heard is exact:
        spread = mean_and_spread(accuracy, present)[:, 1]
    else:
        known = np.where(present, accuracy, np.nan)[:, None]
        spread = fairness_vector(known)[:, FAIRNESS_NAMES.index("std")]
    found = values_of(measured, heard, NO_PRIVACY)
    if not noise.withholds:
        return Measurement(means, spread, truth, found, found)
    values = {"val_loss": means[:, VAL, LOSS], "val_error": 1.0 - means[:, VAL, ACCURACY]}
    values["fairness_std"] = spread
    if noise.private:
        asked = [(task.objectives[name], values[name]) for name in told]
        noisy = _private(
            noise, [*asked, *zip(measured, found.T, strict=True)], heard, rngs, evaluations
        )
        values = dict(zip(told, noisy, strict=False))
        for column, private in enumerate(noisy[len(told) :]):
            found[:, column] = np.where(exact.has_diverged, found[:, column], private)
    blank = np.zeros_like(means)
    blank[..., LOSS] = task.chance_loss
    if "val_loss" in told:
        blank[:, VAL, LOSS] = values["val_loss"]
    if "val_error" in told:
        blank[:, VAL, ACCURACY] = 1.0 - values["val_error"]
    spread = values["fairness_std"] if "fairness_std" in told else np.zeros_like(spread)
    return Measurement(blank, spread, truth, found, found)


def _private(
    noise: Noise,
    values: Sequence[tuple[Objective, Numbers]],
    heard: Evaluations,
    rngs: Sequence[np.random.Generator],
    evaluations: int,
) -> list[Numbers]:
    """Return (N,) values with Laplace noise, clipped; all share the epsilon of an evaluation."""
    clients = clients_evaluated(heard)
    each = np.stack([o.sensitivity(clients) for o, _ in values], axis=1)  # type: ignore[misc]
    added = noise.laplace(each, evaluations, rngs)
    return [
        np.clip(value + added[:, column], *objective.bounds)
        for column, (objective, value) in enumerate(values)
    ]
