"""What the episodes of a meta-data set share: tasks, what an action means, and spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_integer, check_fields, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.records import SourceTask
from fedhpo_gym.objectives import OBJECTIVES
from fedhpo_gym.space import Value
from fedhpo_gym.stored.meta_data import LOSS, MODEL_SUFFICES, MetaData, open_meta_data, score_of
from fedhpo_gym.tasks.meta import META_SPLITS

DEFAULT_OBJECTIVES: Final = ("val_loss", "fairness_p10", "time_s")
ACTIONS: Final = ("index", "coordinates")
TRIALS: Final = 50
FIDELITIES: Final = ("round", "client_sample_rate")
FACTS: Final = 20.0
"""Bound of what is known of a federation: logarithms of counts, and shares."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """What `gymnasium.make` takes for `FedHPO-B-*` ids, beside rendering.

    Attributes:
        space: "LR", "Joint" or "Private".
        instances: the tasks that a `reset` draws from: "train", "validation" or "test", one name,
            or several. No data set, and no survey, is in two of the three splits.
        actions: "index", a place in the pool of the task; or "coordinates" in [-1, 1], as other
            environments have them, of which the nearest untried configuration of the pool is taken.
        continuous: answer any coordinates from the surrogate that all tasks of the space share.
            Tasks whose configurations it does not rank well (tau below .6) are left out.
        trials: trials of an episode.
        fidelity: `round` and `client_sample_rate` of all trials, of those that are stored; each is
            the highest by default.
        objectives: names of the objectives of vector rewards, of those that are stored.
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


class PoolSetup:
    """A meta-data set as an environment asks it.

    With K tasks, P configurations each, d dimensions, F features, M objectives and Q values.

    Attributes:
        data: where numbers come from.
        tasks: (K,) positions among the tasks of the data.
        objectives: the M objectives.
        trials: trials of an episode.
        values: (K, P, Q) values at the fidelity of all trials.
    """

    def __init__(self, data: MetaData, arguments: PoolArguments) -> None:
        self.arguments, self.data = arguments, data
        trials, most = as_integer(arguments.trials), data.features.shape[1]
        if trials is None or not 1 <= trials <= most:
            raise InvalidArgumentError(
                f"`trials` must be an integer from 1 to {most}, the size of a pool, got "
                f"{shown(arguments.trials)}"
            )
        self.trials = trials
        asked = dict(arguments.fidelity or {})
        for name in asked:
            require_known("fidelity", name, FIDELITIES)
        known = dict(zip(FIDELITIES, (data.rounds, data.rates), strict=True))
        self.fidelity = {name: asked.get(name, known[name][-1]) for name in FIDELITIES}
        for name, value in self.fidelity.items():
            if value not in known[name]:
                raise InvalidArgumentError(
                    f"`fidelity['{name}']` must be one of {known[name]}, got {shown(value)}"
                )
        if arguments.continuous and asked:
            raise InvalidArgumentError(
                f"`fidelity` must be left out with continuous=True, whose surrogate answers at the "
                f"last round and all clients, got {shown(asked)}"
            )
        for name in arguments.objectives:
            require_known("objective", name, data.objectives)
        self.objectives = tuple(OBJECTIVES[name] for name in arguments.objectives)
        if not self.objectives or len(set(arguments.objectives)) < len(self.objectives):
            raise InvalidArgumentError(
                "`objectives` must be a list of different names, at least one, got "
                f"{shown(arguments.objectives)}"
            )
        round_, rate = (known[name].index(self.fidelity[name]) for name in FIDELITIES)
        solvable = np.ptp(data.scores[:, :, rate, round_], axis=1) > 0
        self.tasks = tuple(task for task in self._tasks(arguments.instances) if solvable[task])
        if not self.tasks:
            raise InvalidArgumentError(
                f"`instances` must leave a task in which some configuration is better than label "
                f"frequencies at {self.fidelity}, got {shown(arguments.instances)}; with "
                f"continuous=True, only those whose surrogate has a tau of {MODEL_SUFFICES} or more"
            )
        self.names = tuple(data.names[task] for task in self.tasks)
        self.values: Numbers = data.values[list(self.tasks), :, rate, round_]
        self.entropy = data.label_entropy[list(self.tasks)]
        known_scores = self.scores_of(self.values, np.arange(len(self.tasks))[:, None])
        self.lowest, self.highest = known_scores.min(axis=1), known_scores.max(axis=1)
        if arguments.continuous:
            self.lowest, self.highest = np.array([data.model_range(i) for i in self.tasks]).T
        self.features = data.features[list(self.tasks)]
        self.actions = data.actions[list(self.tasks)]
        self.facts = data.arrays["features"][list(self.tasks)].astype(np.float32)

    def _tasks(self, wanted: str | Sequence[str]) -> tuple[int, ...]:
        data, found = self.data, dict[int, None]()
        for name in [wanted] if isinstance(wanted, str) else wanted:
            require_known("instance", name, (*META_SPLITS, *data.names))
            own = data.where(name) if name in META_SPLITS else (data.index(name),)
            found |= dict.fromkeys(own)
        suffices = not self.arguments.continuous
        return tuple(task for task in found if suffices or data.tau[task] >= MODEL_SUFFICES)

    def scores_of(self, values: Numbers, tasks: NDArray[np.intp]) -> Numbers:
        """Return the (...) scores of (..., Q) values of some tasks, by position in `tasks`."""
        losses = values[..., self.data.objectives.index(LOSS)]
        return score_of(losses, self.entropy[tasks])

    def normalised(self, scores: Numbers, tasks: NDArray[np.intp]) -> Numbers:
        """Return scores as shares of the range of the pool of their task, in [0, 1]."""
        low, high = self.lowest[tasks], self.highest[tasks]
        width = np.where(high > low, high - low, 1.0)
        return np.asarray(np.clip((scores - low) / width, 0.0, 1.0))

    def vector_of(self, values: Numbers) -> Numbers:
        """Return the (N, M) scores of the objectives, higher is better, of (N, Q) values."""
        pairs = zip(self.objectives, self.columns, strict=True)
        return np.stack([-one.errors(values[:, column]) for one, column in pairs], axis=1)

    @property
    def columns(self) -> list[int]:
        """Where among the Q values those of the M objectives are."""
        return [self.data.objectives.index(one.name) for one in self.objectives]

    @property
    def by_index(self) -> bool:
        """Whether an action is a place in the pool."""
        return self.arguments.actions == "index" and not self.arguments.continuous

    @cached_property
    def action_space(self) -> gym.spaces.Discrete | gym.spaces.Box:
        if self.by_index:
            return gym.spaces.Discrete(self.values.shape[1])
        return gym.spaces.Box(-1.0, 1.0, (len(self.data.space),), np.float32)

    @cached_property
    def observation_space(self) -> gym.spaces.Dict:
        pool, width = self.features.shape[1:]
        entries = {
            "history": (0.0, 1.0, self.trials * width),
            "scores": (0.0, 1.0, self.trials),
            "trials": (0.0, float(self.trials), 1),
            "remaining_budget": (0.0, 1.0, 1),
            "task": (-FACTS, FACTS, self.facts.shape[1]),
        }
        if not self.arguments.continuous:
            entries["pool"] = (0.0, 1.0, pool * width)
            entries["mask"] = (0.0, 1.0, pool)
        return gym.spaces.Dict(
            {
                name: gym.spaces.Box(low, high, (size,), np.float32)
                for name, (low, high, size) in entries.items()
            }
        )

    @cached_property
    def reward_space(self) -> gym.spaces.Box:
        low, high = np.array([one.score_bounds for one in self.objectives], np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)

    def source_tasks(self, own: Sequence[int]) -> tuple[SourceTask, ...]:
        """Return what agents may learn from: meta-train, less the surveys of some of `tasks`."""
        surveys = {self.data.surveys[self.tasks[one]] for one in own}
        return self.data.source_tasks("train", surveys)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what opens it again: its arguments, not its data."""
        return open_setup, (self.arguments,)


def open_setup(arguments: PoolArguments) -> PoolSetup:
    """Open the meta-data set that arguments name.

    Raises:
        MissingDataError: it is not on this machine.
    """
    data = open_meta_data(arguments.space)
    data.require_installed()
    return PoolSetup(data, arguments)
