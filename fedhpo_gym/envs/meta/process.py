"""The decision process on many tasks, for N episodes at once; one is the case N = 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.meta.setup import MetaSetup, Numbers
from fedhpo_gym.envs.vector import EpisodeDraws, Indices, Layout, named_stream
from fedhpo_gym.space import Value
from fedhpo_gym.stored.meta_data import LOSS, score_of

NOWHERE = -1
"""Place of what is not in the pool."""
Keys = NDArray[np.int64] | None


class MetaProcess(ABC):
    """N episodes of one setup; every step writes (N, size) observations into `frame`.

    Attributes:
        setup: the tasks, and what is asked of them.
        noisy: whether every episode has noise of its own.
        task: (N,) which task each episode has.
        entropy: (N,) of its labels; scores of `low` and `high` (N,) are a regret of 1 and of 0.
        values: (N, Q) of the last trials, and their `scores` (N,), as they are told.
        best: (N,) score of the incumbent, found in `best_trial` (N,).
        share: (N,) how far the incumbent is on the way from `low` to `high`: 1 - normalised regret.
    """

    setup: MetaSetup
    noisy = False

    def __init__(self, setup: MetaSetup, layout: Layout, frame: NDArray[np.float32]) -> None:
        self.setup, self._frame = setup, frame
        number = len(frame)
        self._most = setup.trials
        self._rows = np.arange(number)
        self.task = np.zeros(number, np.int64)
        self.trials = np.zeros(number, np.int64)
        self.elapsed_s = np.zeros(number)
        self.places = np.full(number, NOWHERE, np.intp)
        self.values: Numbers = np.zeros((number, len(setup.data.objectives)))
        self.entropy, self.low, self.high = np.ones(number), np.zeros(number), np.ones(number)
        self.scores, self.best, self.share = np.zeros(number), np.zeros(number), np.zeros(number)
        self.best_trial = np.zeros(number, np.int64)
        # No views of the frame are kept: in a copy they would be of other numbers.
        self._slices = layout.columns
        self._columns = {name: own.start for name, own in layout.columns.items()}
        self._time, self._loss = map(setup.data.objectives.index, ("time_s", LOSS))

    def draws(self) -> EpisodeDraws:
        """Return what chooses the tasks of episodes."""
        start, count = partial(named_stream, "meta_tasks"), len(self.setup.instances)
        return EpisodeDraws(len(self._frame), count, start, noisy=self.noisy)

    @abstractmethod
    def _begin(self, where: Indices, tasks: NDArray[np.int64], keys: Keys) -> Numbers:
        """Take up the tasks of some episodes; return the (n, facts) that are known of them."""

    @abstractmethod
    def _answer(self, actions: NDArray[Any]) -> tuple[Numbers, NDArray[np.float32]]:
        """Write what is told into `values`; return (N,) true scores and (N, F) features."""

    @abstractmethod
    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        """Return the configuration that the last step of an episode tried."""

    @abstractmethod
    def fidelity(self, index: int) -> dict[str, Value]:
        """Return the fidelity that the last step of an episode tried it at."""

    def truth(self, index: int) -> Numbers | None:
        """Return the (Q,) values of an episode's last trial without noise; None if it had none."""
        return None

    def restart(self, where: Indices, tasks: Sequence[int], keys: Keys = None) -> None:
        """Begin episodes of some tasks, of which keys seed the noise."""
        chosen = np.asarray(tasks, np.int64)
        self.task[where] = chosen
        self.trials[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = self.best[where] = self.share[where] = 0.0
        self._frame[where] = 0.0
        self._frame[where, self._columns["remaining_budget"]] = 1.0
        self._frame[where, self._slices["task"]] = self._begin(where, chosen, keys)

    def describe(self, index: int) -> dict[str, Any]:
        """Return what `reset` says of an episode: its task, and where its numbers come from."""
        return self.setup.describe(int(self.task[index]))

    def step(self, actions: NDArray[Any]) -> Numbers:
        """Take one action per episode; return the (N,) gains of the normalised incumbents."""
        rows, frame, most = self._rows, self._frame, self._most
        true, last = self._answer(actions)
        self.scores = self.scores_of(self.values)
        slot = np.minimum(self.trials, most - 1)
        width = last.shape[1]
        start = self._columns["history"] + slot * width
        frame[rows[:, None], start[:, None] + np.arange(width)] = last
        frame[rows, self._columns["scores"] + slot] = self.scores
        self.trials += 1
        frame[:, self._columns["trials"]] = np.minimum(self.trials, most)
        left = np.maximum(1.0 - self.trials / most, 0.0)
        frame[:, self._columns["remaining_budget"]] = left
        self.elapsed_s += self.values[:, self._time]
        before = self.share
        better = (self.scores > self.best) | (self.best_trial == 0)
        self.best = np.where(better, self.scores, self.best)
        self.best_trial = np.where(better, self.trials, self.best_trial)
        reached = (true - self.low) / np.where(self.high > self.low, self.high - self.low, 1.0)
        self.share = np.where(better, np.clip(reached, 0.0, 1.0), before)
        return self.share - before

    def scores_of(self, values: Numbers) -> Numbers:
        """Return the (N,) scores of (N, Q) values."""
        return score_of(values[:, self._loss], self.entropy)

    @property
    def over(self) -> NDArray[np.bool_]:
        """(N,) whether the budget is spent."""
        return np.asarray(self.trials >= self._most)

    def untried(self, index: int) -> NDArray[np.bool_]:
        """Return the (P,) places of the pool of an episode that were not tried."""
        if "mask" not in self._slices:
            raise InvalidArgumentError(
                "`action_masks` must be asked where actions are of a pool, here any may be taken"
            )
        return np.asarray(self._frame[index, self._slices["mask"]] > 0)
