"""The decision process of meta-data sets, for N episodes at once; one is the case N = 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.draws import EpisodeDraws, named_stream
from fedhpo_gym.envs.pool.setup import Numbers, PoolSetup
from fedhpo_gym.envs.vector import Indices, Layout
from fedhpo_gym.space import Value

STREAM = "meta_tasks"
"""Name of the random streams that draw the tasks of episodes."""
NOWHERE = -1
"""Place of what is not in the pool."""


class PoolProcess:
    """N episodes of one setup; every step writes (N, size) observations into `frame`."""

    def __init__(self, setup: PoolSetup, layout: Layout, frame: NDArray[np.float32]) -> None:
        self.setup, self._frame = setup, frame
        number = len(frame)
        self._rows = np.arange(number)
        self.task = np.zeros(number, np.intp)
        self.trials = np.zeros(number, np.int64)
        self.elapsed_s = np.zeros(number)
        self.places = np.full(number, NOWHERE, np.intp)
        self.values: Numbers = np.zeros((number, setup.values.shape[-1]))
        self.scores, self.best = np.zeros(number), np.zeros(number)
        self.best_trial = np.zeros(number, np.int64)
        self._last = np.zeros((number, setup.features.shape[-1]), np.float32)
        # No views of the frame are kept: in a copy they would be of other numbers.
        self._slices = layout.columns
        self._columns = {name: own.start for name, own in layout.columns.items()}
        self._time = setup.data.objectives.index("time_s")
        self._surrogate = setup.data.surrogate if setup.arguments.continuous else None

    def draws(self) -> EpisodeDraws:
        start = partial(named_stream, STREAM)
        return EpisodeDraws(len(self._frame), len(self.setup.tasks), start, noisy=False)

    def restart(self, where: Indices, tasks: Sequence[int]) -> None:
        """Begin episodes of some tasks."""
        chosen = np.asarray(tasks, np.intp)
        self.task[where] = chosen
        self.trials[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = self.best[where] = 0.0
        self._frame[where] = 0.0
        self._frame[where, self._columns["remaining_budget"]] = 1.0
        self._frame[where, self._slices["task"]] = self.setup.facts[chosen]
        if "pool" in self._slices:
            pools = self.setup.features[chosen].reshape(len(chosen), -1)
            self._frame[where, self._slices["pool"]] = pools
            self._frame[where, self._slices["mask"]] = 1.0

    def step(self, actions: NDArray[Any]) -> Numbers:
        """Take one action per episode; return the (N,) gains of the normalised incumbents."""
        setup, rows, frame = self.setup, self._rows, self._frame
        if self._surrogate is not None:
            tasks = np.asarray(setup.tasks)[self.task]
            self.values, asked = setup.data.answer(tasks, np.asarray(actions, np.float32))
            self._last = asked.astype(np.float32)
        else:
            self.places = actions if setup.by_index else self._nearest(actions)
            self.values = setup.values[self.task, self.places]
            self._last = setup.features[self.task, self.places]
            frame[rows, self._columns["mask"] + self.places] = 0.0
        self.scores = setup.scores_of(self.values, self.task)
        slot = np.minimum(self.trials, setup.trials - 1)
        width = self._last.shape[1]
        start = self._columns["history"] + slot * width
        frame[rows[:, None], start[:, None] + np.arange(width)] = self._last
        frame[rows, self._columns["scores"] + slot] = self.scores
        self.trials += 1
        frame[:, self._columns["trials"]] = np.minimum(self.trials, setup.trials)
        left = np.maximum(1.0 - self.trials / setup.trials, 0.0)
        frame[:, self._columns["remaining_budget"]] = left
        self.elapsed_s += self.values[:, self._time]
        before = setup.normalised(self.best, self.task)
        better = (self.scores > self.best) | (self.best_trial == 0)
        self.best = np.where(better, self.scores, self.best)
        self.best_trial = np.where(better, self.trials, self.best_trial)
        return setup.normalised(self.best, self.task) - before

    @property
    def over(self) -> NDArray[np.bool_]:
        """(N,) whether the budget is spent."""
        return np.asarray(self.trials >= self.setup.trials)

    def untried(self, index: int) -> NDArray[np.bool_]:
        """Return the (P,) places of the pool of an episode that were not tried."""
        if "mask" not in self._slices:
            raise InvalidArgumentError(
                "`action_masks` must be asked where actions are of a pool, got continuous=True"
            )
        return np.asarray(self._frame[index, self._slices["mask"]] > 0)

    def _nearest(self, actions: NDArray[Any]) -> NDArray[np.intp]:
        """Return the nearest untried place of each episode; of all, where none is left."""
        setup = self.setup
        wanted = setup.data.space.features(np.asarray(actions, np.float32))
        found = np.empty(len(actions), np.intp)
        for row, point in enumerate(wanted):
            distance = ((setup.features[self.task[row]] - point) ** 2).sum(axis=1)
            tried = ~self.untried(row)
            found[row] = np.where(tried & ~tried.all(), np.inf, distance).argmin()
        return found

    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        """Return the configuration that the last step of an episode tried."""
        data = self.setup.data
        if self._surrogate is not None:
            return data.space.decode(np.asarray(action, np.float64))
        return data.configuration(self.setup.tasks[self.task[index]], int(self.places[index]))
