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
    count that are trained anew. Where workers run several at once, a trial counts in full when it
    begins: what clients send is seen, whether or not anybody is told how it ends.
    """

    def __init__(self, number: int) -> None:
        """Start N episodes."""
        self._sum = np.zeros((number, len(SEARCH_ORDERS)))
        self._worst = np.zeros((number, len(SEARCH_ORDERS)))
        self._trials = np.zeros(number, dtype=np.int64)
        self._ahead = np.zeros(number, dtype=np.int64)
        self.vectors: NDArray[np.float64] = np.zeros((number, len(PRIVACY_NAMES)))

    def restart(self, where: Indices) -> None:
        """Forget what some episodes spent."""
        self._trials[where] = self._ahead[where] = 0
        self._sum[where] = self._worst[where] = self.vectors[where] = 0.0

    def begin(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        """Take a trial of an episode that ends later; see `end`."""
        self._add(index, task, query, rounds)
        self._ahead[index] += 1

    def end(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        """Take a trial of an episode, of which some rounds are trained anew, unless it has begun.

        Trials may end in another order than they began in.
        """
        if self._ahead[index]:
            self._ahead[index] -= 1
        else:
            self._add(index, task, query, rounds)

    def _add(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        self._trials[index] += 1
        configuration, fidelity = query
        rate = fidelity.client_sample_rate
        whole = renyi_spent(task, configuration, fidelity.round, rate)
        self._worst[index] = np.maximum(self._worst[index], whole)
        self._sum[index] += renyi_spent(task, configuration, rounds, rate)
        self.vectors[index] = ledger_of(self._sum[index].tolist(), DELTA).vector()

    def info(self, index: int) -> dict[str, Any]:
        """Return what `info` says of an episode: what is spent, and what selection would be.

        `selection_epsilon` is that of showing the best trial alone, had their number been drawn
        from a geometric distribution with this mean, and every trial at random.
        """
        spent = dict(zip(PRIVACY_NAMES, self.vectors[index].tolist(), strict=True))
        trials = max(int(self._trials[index]), 1)
        selected = selection_epsilon(self._worst[index], trials, DELTA)
        return {**spent, "selection_epsilon": min(selected, CAP)}
