"""The privacy that all trials of an episode spend together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.objectives import (
    CAP,
    PRIVACY_NAMES,
    SEARCH_ORDERS,
    ledger_of,
    selection_epsilon,
)
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.privacy import DELTA, MECHANISMS, renyi_spent


def is_counted(task: Task) -> bool:
    """Return whether the trials of a task are added up: version 1 and later, where noise is added.

    Version 0 shows what it showed.
    """
    return task.version >= 1 and task.algorithm in MECHANISMS


class TuningLedger:
    """What the trials of N episodes spend together, each episode by itself.

    Every trial counts, equal ones again: its uploads are made anew. With freeze-thaw, the rounds
    count that are trained anew.
    """

    def __init__(self, number: int) -> None:
        """Start N episodes."""
        self._sum = np.zeros((number, len(SEARCH_ORDERS)))
        self._worst = np.zeros((number, len(SEARCH_ORDERS)))
        self.vectors: NDArray[np.float64] = np.zeros((number, len(PRIVACY_NAMES)))

    def restart(self, where: Indices) -> None:
        """Forget what some episodes spent."""
        self._sum[where] = self._worst[where] = self.vectors[where] = 0.0

    def add(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        """Take a trial of an episode, of which some rounds are trained anew."""
        configuration, fidelity = query
        rate = fidelity.client_sample_rate
        whole = renyi_spent(task, configuration, fidelity.round, rate)
        self._worst[index] = np.maximum(self._worst[index], whole)
        self._sum[index] += renyi_spent(task, configuration, rounds, rate)
        self.vectors[index] = ledger_of(self._sum[index].tolist(), DELTA).vector()

    def info(self, index: int, trials: int) -> dict[str, Any]:
        """Return what `info` says of an episode: what is spent, and what selection would be.

        `selection_epsilon` is that of showing the best trial alone, had their number been drawn
        from a geometric distribution with this mean, and every trial at random.
        """
        spent = dict(zip(PRIVACY_NAMES, self.vectors[index].tolist(), strict=True))
        selected = selection_epsilon(self._worst[index], max(trials, 1), DELTA)
        return {**spent, "selection_epsilon": min(selected, CAP)}
