"""Episodes on the pools of real tasks, or on the surrogate that all tasks of a space share.

`env` uses `PoolSetup` and `PoolProcess` for the ids `FedHPO-B-*`; `stored/meta_data.py` holds the
numbers. A pool is a finite set of configurations that were trained on a task. With
`continuous=True`, one surrogate for all tasks of the space evaluates any configuration instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats, Indices, Integers, Singles
from fedhpo_gym.core.checks import check_fields, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.envs.meta.setup import DEFAULT_OBJECTIVES, TRIALS, Keys, MetaProcess, MetaSetup
from fedhpo_gym.envs.vector import ObservationLayout
from fedhpo_gym.evaluation.records import FIDELITIES, SourceTask
from fedhpo_gym.space import Value
from fedhpo_gym.stored.meta_data import MODEL_SUFFICES, MetaData, open_meta_data
from fedhpo_gym.tasks.meta import META_SPLITS

ACTIONS: Final = ("index", "coordinates")


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """Arguments of `gymnasium.make` for `FedHPO-B-*` ids, besides rendering.

    Attributes:
        space: "LR", "Joint" or "Private".
        instances: the tasks that a `reset` draws from: "train", "validation" or "test", one name,
            or several. No data set, and no survey, is in two of the three splits.
        actions: "index", an index into the pool of the task; or "coordinates" in [-1, 1], as in
            other environments, which select the nearest untried configuration of the pool.
        continuous: evaluate any coordinates with the surrogate that all tasks of the space share.
            Tasks whose configurations it does not rank well (tau below .6) are left out.
        trials: trials of an episode.
        fidelity: `round` and `client_sample_rate` of all trials, from the stored ones; each is the
            highest by default.
        objectives: names of the objectives of vector rewards, from the stored ones.
        vector_reward: let the reward be the scores of all objectives.
    """

    space: str
    instances: str | Sequence[str] = "train"
    actions: str = "index"
    continuous: bool = False
    trials: int = TRIALS
    fidelity: Mapping[str, Value] | None = None
    objectives: Sequence[str] = DEFAULT_OBJECTIVES
    vector_reward: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require_known("kind of actions", self.actions, ACTIONS)

    def open(self) -> "PoolSetup":
        """Open the meta-data set, or raise `MissingDataError` if it is not on this machine."""
        data = open_meta_data(self.space)
        data.require_installed()
        return PoolSetup(data, self)


class PoolSetup(MetaSetup):
    """A meta-data set, with the arguments of an environment.

    With K tasks, P configurations each, F features and Q values.

    Attributes:
        tasks: (K,) positions among the tasks of the data.
        values: (K, P, Q) values at the fidelity of all trials.
    """

    data: MetaData

    def __init__(self, data: MetaData, arguments: PoolArguments) -> None:
        super().__init__(arguments, data, data.features.shape[1])
        if arguments.continuous and arguments.fidelity:
            raise InvalidArgumentError(
                f"`fidelity` must be left out with continuous=True, whose surrogate answers at the "
                f"last round and all clients, got {short_repr(arguments.fidelity)}"
            )
        self.exact = not arguments.continuous
        self.by_index = self.exact and arguments.actions == "index"
        round_, rate = (self.fidelity_grids[name].index(self.fixed[name]) for name in FIDELITIES)
        solvable = np.ptp(data.scores[:, :, rate, round_], axis=1) > 0
        self.tasks = tuple(task for task in self._tasks(arguments.instances) if solvable[task])
        if not self.tasks:
            raise InvalidArgumentError(
                f"`instances` must leave a task in which some configuration is better than label "
                f"frequencies at {self.fixed}, got {short_repr(arguments.instances)}; with "
                f"continuous=True, only those whose surrogate has a tau of {MODEL_SUFFICES} or more"
            )
        self.instances = tuple(data.names[task] for task in self.tasks)
        self.values: Floats = data.values[list(self.tasks), :, rate, round_]
        self.entropy = data.label_entropy[list(self.tasks)]
        scores = data.scores[list(self.tasks), :, rate, round_]
        self.lowest, self.highest = scores.min(axis=1), scores.max(axis=1)
        if arguments.continuous:
            self.lowest, self.highest = np.array([data.model_range(i) for i in self.tasks]).T
        self.features = data.features[list(self.tasks)]
        self.actions = data.actions[list(self.tasks)]
        self.facts = data.arrays["features"][list(self.tasks)].astype(np.float32)

    def _tasks(self, names: str | Sequence[str]) -> tuple[int, ...]:
        data, positions = self.data, dict[int, None]()
        for name in [names] if isinstance(names, str) else names:
            require_known("instance", name, (*META_SPLITS, *data.names))
            matches = data.where(name) if name in META_SPLITS else (data.index(name),)
            positions |= dict.fromkeys(matches)
        suffices = not self.arguments.continuous
        return tuple(task for task in positions if suffices or data.tau[task] >= MODEL_SUFFICES)

    @cached_property
    def action_space(self) -> gym.spaces.Discrete | gym.spaces.Box:
        if self.by_index:
            return gym.spaces.Discrete(self.values.shape[1])
        return super().action_space

    def entries(self) -> dict[str, tuple[float, float, int]]:
        shapes, (pool, width) = super().entries(), self.features.shape[1:]
        if not self.arguments.continuous:
            shapes["pool"] = (0.0, 1.0, pool * width)
            shapes["mask"] = (0.0, 1.0, pool)
        return shapes

    def process(self, layout: ObservationLayout, frame: Singles) -> "PoolProcess":
        return PoolProcess(self, layout, frame)

    def describe(self, task: int) -> dict[str, Any]:
        split = self.data.splits[self.tasks[task]]
        return {"task": self.instances[task], "split": split, **super().describe(task)}

    def candidates(self, task: int) -> Singles | None:
        return None if self.arguments.continuous else self.actions[task]

    def lattice(self) -> tuple[Singles, Floats]:
        if self.exact:
            return self.actions[0], self.values[0][:, self.columns]
        actions = self.data.actions.reshape(-1, self.data.actions.shape[2])
        return actions, self.predicted(actions)

    def configuration(self, actions: Singles, row: int) -> dict[str, Value]:
        if self.exact:
            return self.data.configuration(self.tasks[0], row)
        return super().configuration(actions, row)

    def predicted(self, actions: Singles) -> Floats:
        tasks = np.full(len(actions), self.tasks[0], np.intp)
        return self.data.answer(tasks, actions)[0][:, self.columns]

    def source_tasks(self, task_indices: Sequence[int]) -> tuple[SourceTask, ...]:
        """Return the meta-train tasks, without the surveys that belong to some of `tasks`."""
        surveys = {self.data.surveys[self.tasks[index]] for index in task_indices}
        return self.data.source_tasks("train", surveys)


class PoolProcess(MetaProcess):
    """Episodes on the pools of real tasks, or on their surrogate."""

    setup: PoolSetup

    def _begin(self, where: Indices, tasks: Integers, keys: Keys) -> Floats:
        setup = self.setup
        self.entropy[where] = setup.entropy[tasks]
        self.low[where], self.high[where] = setup.lowest[tasks], setup.highest[tasks]
        if "pool" in self._slices:
            pools = setup.features[tasks].reshape(len(tasks), -1)
            self._frame[where, self._slices["pool"]] = pools
            self._frame[where, self._slices["mask"]] = 1.0
        return np.asarray(setup.facts[tasks])

    def _answer(self, actions: NDArray[Any]) -> tuple[Floats, Singles]:
        setup = self.setup
        if setup.arguments.continuous:
            tasks = np.asarray(setup.tasks)[self.task]
            self.values, features = setup.data.answer(tasks, np.asarray(actions, np.float32))
            last = features.astype(np.float32)
        else:
            self.places = actions if setup.by_index else self._nearest(actions)
            self.values = setup.values[self.task, self.places]
            last = setup.features[self.task, self.places]
            self._frame[self._rows, self._columns["mask"] + self.places] = 0.0
        return self.scores_of(self.values), last

    def _nearest(self, actions: NDArray[Any]) -> NDArray[np.intp]:
        """Return the nearest untried index of each episode; trials never exceed the pool."""
        setup = self.setup
        features = setup.data.space.features(np.asarray(actions, np.float32))
        indices = np.empty(len(actions), np.intp)
        for row, point in enumerate(features):
            distance = ((setup.features[self.task[row]] - point) ** 2).sum(axis=1)
            indices[row] = np.where(self.untried(row), distance, np.inf).argmin()
        return indices

    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        data = self.setup.data
        if self.setup.arguments.continuous:
            return data.space.decode(np.asarray(action, np.float64))
        return data.configuration(self.setup.tasks[self.task[index]], int(self.places[index]))

    def fidelity(self, index: int) -> dict[str, Value]:
        return dict(self.setup.fixed)
