"""What an agent is told of evaluations that are noisy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.noise import EVALUATIONS, Noise, heard_clients
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, Spent, values_of

Numbers = NDArray[np.float64]


def tell(
    setup: TrialSetup,
    evaluations: Evaluations,
    truth: Numbers,
    spent: Spent,
    rngs: Sequence[np.random.Generator],
) -> tuple[Numbers, dict[str, Numbers]]:
    """Return noisy values of the objectives, and entries of observations that fit them.

    What reads no client is told exactly: privacy that training spent, time, bytes, computation.

    Args:
        setup: names the noise and the objectives.
        evaluations: the truth of B trials.
        truth: (B, objectives) their values.
        spent: what they spend.
        rngs: the random stream of each trial.

    Returns:
        (B, objectives) values, and the entries of `observation.measure`.
    """
    noise = setup.noise
    assert noise is not None  # noqa: S101 - the caller asked
    bounds = np.array([metric.bounds for metric in setup.task.metrics])
    heard = noise.hear(evaluations, rngs, bounds)
    values = np.where(setup.reads_clients, values_of(setup.objectives, heard, spent), truth)
    if noise.private:
        values = _private(setup, noise, values, heard, rngs)
    entries = observation.measure(setup.task, heard, spent.privacy)
    if noise.withholds:
        entries.update(_told(setup, values))
    return values, entries


def _private(
    setup: TrialSetup,
    noise: Noise,
    values: Numbers,
    heard: Evaluations,
    rngs: Sequence[np.random.Generator],
) -> Numbers:
    """Return values with Laplace noise, clipped; those of courses that diverged stay the worst."""
    clients, objectives = heard_clients(heard), setup.objectives
    found = values.copy()
    told = np.flatnonzero(setup.reads_clients).tolist()
    if not told:
        return found
    each = np.stack([objectives[i].sensitivity(clients) for i in told], axis=1)  # type: ignore[misc]
    added = noise.laplace(each, noise.evaluations or EVALUATIONS, rngs)
    for column, i in enumerate(told):
        noisy = np.clip(values[:, i] + added[:, column], *objectives[i].bounds)
        found[:, i] = np.where(heard.has_diverged, values[:, i], noisy)
    return found


def _told(setup: TrialSetup, values: Numbers) -> dict[str, Numbers]:
    """Return the entries of what clients evaluate: objectives only, else as before a trial."""
    task, names = setup.task, setup.objective_names
    entries = {
        metric.name: np.full((len(values), len(task.seen_splits)), metric.worst)
        for metric in task.metrics
    }
    entries["fairness"] = np.zeros((len(values), len(FAIRNESS_NAMES)))
    for metric in task.metrics:
        for column, split in enumerate(task.seen_splits):
            if (name := f"{split}_{metric.objective}") in names:
                value = values[:, names.index(name)]
                entries[metric.name][:, column] = 1.0 - value if metric.complement else value
    for column, measure in enumerate(FAIRNESS_NAMES):
        if (name := f"fairness_{measure}") in names:
            entries["fairness"][:, column] = values[:, names.index(name)]
    return entries
