"""What the server hears of an evaluation between two steps, where evaluations are noisy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.round import scales
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.noise import Noise, heard_clients
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.objectives import FAIRNESS_NAMES, client_fairness
from fedhpo_gym.tasks import Task

TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
LOSS, ACCURACY, F1 = (METRICS.index(metric) for metric in ("loss", "accuracy", "f1"))
VALUES: Final = ("val_loss", "val_error", "fairness_std")
"""Objectives whose values may be told where everything else is withheld."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Heard:
    """An evaluation of N models.

    Attributes:
        means: (N, splits, metrics) what the server takes for the means over clients.
        spread: (N,) what it takes for the standard deviation of the validation accuracy.
        truth: (N, splits, metrics) the means over clients.
    """

    means: Numbers
    spread: Numbers
    truth: Numbers


def hear(
    noise: Noise,
    task: Task,
    told: Sequence[str],
    evaluations: int,
    metrics: NDArray[np.floating],
    samples: NDArray[np.integer],
    truth: Numbers,
    rngs: Sequence[np.random.Generator],
) -> Heard:
    """Return what the server hears.

    Where the noise withholds, the other metrics are those of a guess: the loss that chance has, and
    no accuracy, F1 or spread.

    Args:
        noise: what evaluations lack.
        task: names the bounds of metrics and values.
        told: of `VALUES`, what is told where the rest is withheld.
        evaluations: how many share an epsilon.
        metrics: (N, clients, splits, metrics) the truth.
        samples: (N, clients, splits).
        truth: (N, splits, metrics) its means.
        rngs: the random stream of each evaluation.
    """
    nowhere = np.zeros((len(metrics), 1), dtype=np.int64)
    all_of_it = Evaluations(metrics[:, None], samples[:, None], nowhere, nowhere > 0)
    bounds = np.array([metric.bounds for metric in task.metrics])
    heard = noise.hear(all_of_it, rngs, bounds)
    means = np.array(scales.client_means(heard.best[:, 0], heard.num_samples[:, 0]))
    spread = client_fairness(heard)[:, FAIRNESS_NAMES.index("std")]
    if heard is all_of_it:
        present = samples[:, :, VAL] > 0
        spread = scales.mean_and_spread(metrics[:, :, VAL, ACCURACY], present)[:, 1]
    if not noise.withholds:
        return Heard(means, spread, truth)
    values = {"val_loss": means[:, VAL, LOSS], "val_error": 1.0 - means[:, VAL, ACCURACY]}
    values["fairness_std"] = spread
    if noise.private:
        values = _private(
            noise, task, {name: values[name] for name in told}, heard, rngs, evaluations
        )
    blank = np.zeros_like(means)
    blank[..., LOSS] = task.chance_loss
    if "val_loss" in told:
        blank[:, VAL, LOSS] = values["val_loss"]
    if "val_error" in told:
        blank[:, VAL, ACCURACY] = 1.0 - values["val_error"]
    hidden = np.zeros_like(spread)
    return Heard(blank, values["fairness_std"] if "fairness_std" in told else hidden, truth)


def _private(
    noise: Noise,
    task: Task,
    values: dict[str, Numbers],
    heard: Evaluations,
    rngs: Sequence[np.random.Generator],
    evaluations: int,
) -> dict[str, Numbers]:
    clients = heard_clients(heard)
    objectives = [task.objectives[name] for name in values]
    each = np.stack([o.sensitivity(clients) for o in objectives], axis=1)  # type: ignore[misc]
    added = noise.laplace(each, evaluations, rngs)
    return {
        name: np.clip(value + added[:, column], *objectives[column].bounds)
        for column, (name, value) in enumerate(values.items())
    }
