"""What an agent is told of evaluations that are noisy, and the random streams that decide it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.vector import Indices
from fedhpo_gym.evaluation.noise import EVALUATIONS, STREAM, Noise, clients_evaluated
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, Spent, values_of
from fedhpo_gym.seeding import streams


class TrialStreams:
    """Hands out one stream per trial, decided by the episode's key and the trial's number.

    Where a query that was paid for is free from then on, asking again tells nothing new: it has the
    stream of the first time. Else an agent could draw for nothing until it is lucky.
    """

    def __init__(self, trials: NDArray[np.int64], *, freeze_thaw: bool) -> None:
        """Follow the numbers of the trials.

        Args:
            trials: (N,) trials since reset, which somebody else counts.
        """
        self._trials, self._freeze_thaw = trials, freeze_thaw
        self._keys = np.zeros(len(trials), dtype=np.int64)
        self._asked: list[dict[Hashable, int]] = [{} for _ in trials]

    def restart(self, where: Indices | slice, keys: NDArray[np.int64]) -> None:
        """Begin some episodes."""
        self._keys[where] = keys
        for index in np.arange(len(self._asked))[where].tolist():
            self._asked[index] = {}

    def of(self, where: Indices, queries: Sequence[Hashable]) -> list[np.random.Generator]:
        """Return the streams of the coming trials of some episodes.

        Args:
            where: (n,) which episodes.
        """
        numbers = self._trials[where].tolist()
        if self._freeze_thaw:
            each = zip(where.tolist(), queries, numbers, strict=True)
            numbers = [
                self._asked[index].setdefault(query, number) for index, query, number in each
            ]
        return list(streams(STREAM, list(zip(self._keys[where].tolist(), numbers, strict=True))))


Numbers = NDArray[np.float64]


def noisy_values(
    setup: TrialSetup,
    evaluations: Evaluations,
    truth: Numbers,
    spent: Spent,
    rngs: Sequence[np.random.Generator],
) -> tuple[Numbers, dict[str, Numbers]]:
    """Return noisy values of the objectives, and entries of observations that fit them.

    What reads no client is told exactly: privacy that training spent, time, bytes, computation.

    Args:
        truth: (B, objectives) their values.

    Returns:
        (B, objectives) values, and the entries of `observation.measure`.
    """
    noise = setup.noise
    assert noise is not None  # noqa: S101 - the caller asked
    bounds = np.array([metric.bounds for metric in setup.task.metrics])
    heard = noise.apply(evaluations, rngs, bounds)
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
    clients, objectives = clients_evaluated(heard), setup.objectives
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
