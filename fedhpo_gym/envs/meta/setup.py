"""The common part of environments with many tasks: setup, process and truth.

`pools` and `generated` subclass `MetaSetup` and `MetaProcess`, and the environments in `env` call
them. A setup holds the tasks and the arguments; a process holds N episodes as arrays with a row
each and computes their steps together. `MetaTruth` gives the optimum of one task, for regret.
Scores are shares of explained entropy, so that they compare between tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NoReturn

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.core.arrays import Bools, Floats, Indices, Integers, Singles
from fedhpo_gym.core.checks import as_integer, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError, require_known
from fedhpo_gym.envs.truth import SearchResult, Truth
from fedhpo_gym.envs.vector import EpisodeDraws, ObservationLayout, named_stream
from fedhpo_gym.evaluation.records import FIDELITIES, Fidelity, SourceTask
from fedhpo_gym.objectives import OBJECTIVES
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.meta_data import LOSS, MetaData, explained_entropy
from fedhpo_gym.stored.task_generator import FACTS, TaskGenerator

DEFAULT_OBJECTIVES: Final = ("val_loss", "fairness_p10", "time_s")
TRIALS: Final = 50


class MetaSetup(ABC):
    """Tasks and arguments that episodes share; M objectives, Q values, d dimensions.

    Attributes:
        arguments: the arguments of the environment.
        data: the source of numbers.
        trials: trials of an episode.
        fidelity_grids: rounds and client sample rates that have numbers.
        fixed: the fidelity of all trials, except for dimensions that they choose.
        objectives: the M objectives.
    """

    data: MetaData | TaskGenerator
    instances: Sequence[Any]
    """The tasks of episodes; other methods refer to them by their positions here."""
    by_index = False
    """Whether an action is an index into the pool."""
    fidelity_space = SearchSpace(())
    """The fidelity dimensions that a trial may choose."""

    def __init__(self, arguments: Any, data: MetaData | TaskGenerator, max_trials: int) -> None:
        self.arguments, self.data = arguments, data
        trials = as_integer(arguments.trials)
        if trials is None or not 1 <= trials <= max_trials:
            raise InvalidArgumentError(
                f"`trials` must be an integer from 1 to {max_trials}, got "
                f"{short_repr(arguments.trials)}"
            )
        self.trials = trials
        fidelity = dict(arguments.fidelity or {})
        for name in fidelity:
            require_known("fidelity", name, FIDELITIES)
        self.fidelity_grids = dict(zip(FIDELITIES, (data.rounds, data.rates), strict=True))
        self.fixed = {
            name: fidelity.get(name, self.fidelity_grids[name][-1]) for name in FIDELITIES
        }
        for name, value in self.fixed.items():
            if value not in self.fidelity_grids[name]:
                raise InvalidArgumentError(
                    f"`fidelity['{name}']` must be one of {self.fidelity_grids[name]}, got "
                    f"{short_repr(value)}"
                )
        for name in arguments.objectives:
            require_known("objective", name, data.objectives)
        self.objectives = tuple(OBJECTIVES[name] for name in arguments.objectives)
        if not self.objectives or len(set(arguments.objectives)) < len(self.objectives):
            raise InvalidArgumentError(
                "`objectives` must be a list of different names, at least one, got "
                f"{short_repr(arguments.objectives)}"
            )

    @property
    def search_space(self) -> SearchSpace:
        """The dimensions of an action's coordinates."""
        return self.data.space

    @property
    def action_space(self) -> gym.spaces.Discrete | gym.spaces.Box:
        return gym.spaces.Box(-1.0, 1.0, (len(self.search_space),), np.float32)

    @cached_property
    def observation_space(self) -> gym.spaces.Dict:
        return gym.spaces.Dict(
            {
                name: gym.spaces.Box(low, high, (size,), np.float32)
                for name, (low, high, size) in self.entries().items()
            }
        )

    def entries(self) -> dict[str, tuple[float, float, int]]:
        """Return bounds and size of the entries of an observation."""
        return {
            "history": (0.0, 1.0, self.trials * self.width),
            "scores": (0.0, 1.0, self.trials),
            "trials": (0.0, float(self.trials), 1),
            "remaining_budget": (0.0, 1.0, 1),
            "task": (-FACTS, FACTS, len(self.data.card["features"])),
        }

    @property
    def width(self) -> int:
        """Number of features of a configuration."""
        return int(self.data.space.features(np.zeros((1, len(self.data.space)))).shape[1])

    @cached_property
    def reward_space(self) -> gym.spaces.Box:
        low, high = np.array(
            [objective.score_bounds for objective in self.objectives], np.float32
        ).T
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def columns(self) -> list[int]:
        """Columns of the M objectives among the Q values."""
        return [self.data.objectives.index(objective.name) for objective in self.objectives]

    def vector_of(self, values: Floats) -> Floats:
        """Return the (N, M) scores of the objectives, higher is better, of (N, Q) values."""
        pairs = zip(self.objectives, self.columns, strict=True)
        return np.stack(
            [-objective.errors(values[:, column]) for objective, column in pairs], axis=1
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that open it again, not its data."""
        return type(self.arguments).open, (self.arguments,)

    @abstractmethod
    def process(self, layout: ObservationLayout, frame: Singles) -> "MetaProcess":
        """Return the process of episodes, one for each row of a frame."""

    def candidates(self, task: int) -> Singles | None:
        """Return the (P, d) coordinates of a task's configurations; None if any are allowed."""
        return None

    @abstractmethod
    def source_tasks(self, task_indices: Sequence[int]) -> tuple[SourceTask, ...]:
        """Return source tasks for transfer learning to some of the tasks."""

    exact = False
    """Whether only configurations of the lattice can be evaluated."""

    @abstractmethod
    def lattice(self) -> tuple[Singles, Floats]:
        """Return (n, d) actions with known values in the only task, and the (n, M) values."""

    def configuration(self, actions: Singles, row: int) -> dict[str, Value]:
        """Return the configuration of a row of the lattice."""
        return self.data.space.decode(actions[row])

    @abstractmethod
    def predicted(self, actions: Singles) -> Floats:
        """Return the (n, M) values of any actions in the only task."""

    def describe(self, task: int) -> dict[str, Any]:
        """Return the `info` of `reset` about an episode."""
        return {
            "instance": task,
            "objective_names": [objective.name for objective in self.objectives],
            "fingerprint": self.data.fingerprint,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MetaTruth(Truth):
    """The values of all objectives for the configurations of a task's pool.

    For a surrogate, these are the configurations of all tasks of the space. For a generated task,
    they are the configurations of the search for its optimum, and random ones that are no better.
    """

    _setup: MetaSetup

    @property
    def search_space(self) -> SearchSpace:
        return self._setup.data.space

    @property
    def fidelity(self) -> dict[str, Value]:
        return dict(self._setup.fixed)

    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        encoded = [self.search_space.encode(configuration) for configuration in configurations]
        actions = np.reshape(np.array(encoded, np.float32), (-1, len(self.search_space)))
        if self.exact:
            # Rounding moves an action by less than this.
            (off_pool,) = np.nonzero(self._distances(actions).min(axis=1) > 1e-9)
            if off_pool.size:
                raise OffGridError(
                    f"`configurations` must be in the pool of {self._setup.instances[0]}, got "
                    f"{short_repr(configurations[off_pool[0]])}; `truth.query(i)` returns the i-th"
                )
        return self._values_of(actions)

    def regret_of(self, actions: NDArray[np.floating]) -> Floats:
        return self._regret(self._values_of(np.asarray(actions, np.float32)))

    def _query_of(self, row: int) -> CheckedQuery:
        configuration = self._setup.configuration(self._queries, row)
        fixed = self._setup.fixed
        return configuration, Fidelity(int(fixed["round"]), float(fixed["client_sample_rate"]))

    def under(self, constraints: Any) -> NoReturn:
        raise InvalidArgumentError("`constraints` must be left out: these tasks have none")

    def _values_of(self, actions: Singles) -> Floats:
        """Return the (n, M) values of actions, from the surrogate or the nearest in the pool."""
        if not self.exact:
            return self._setup.predicted(actions)
        return np.asarray(self.values[self._distances(actions).argmin(axis=1)])

    def _distances(self, actions: Singles) -> Floats:
        """Return the (n, P) squared distances of actions from the pool."""
        features, pool_features = map(self.search_space.features, (actions, self._queries))
        return np.asarray(((features[:, None] - pool_features) ** 2).sum(axis=2))


def meta_truth_of(setup: MetaSetup) -> MetaTruth:
    """Return the truth of a task.

    Raises:
        InvalidArgumentError: `instances` are several tasks.
    """
    if len(setup.instances) > 1:
        raise InvalidArgumentError(
            f"`instances` must be one task for its truth to be known, got {len(setup.instances)}: "
            f"{', '.join(map(str, setup.instances[:3]))}, ..."
        )
    actions, values = setup.lattice()
    result = SearchResult(lambda: (actions, values, len(values)))
    return MetaTruth(objectives=setup.objectives, exact=setup.exact, _setup=setup, _result=result)


NOWHERE = -1
"""Index of a configuration that is not in a pool."""
Keys = Integers | None


class MetaProcess(ABC):
    """N episodes of one setup; every step writes (N, size) observations into `frame`.

    Attributes:
        setup: the tasks, and the arguments of the environment.
        noisy: whether every episode draws its own noise.
        task: (N,) index of the task of each episode.
        entropy: (N,) entropy of its labels; scores `low` and `high` (N,) are regrets of 1 and 0.
        values: (N, Q) reported values of the last trials, with their `scores` (N,).
        best: (N,) score of the incumbent, from the trial `best_trial` (N,).
        share: (N,) noise-free score of the incumbent between `low` (0) and `high` (1), that is,
            1 - normalised regret.
    """

    setup: MetaSetup
    noisy = False

    def __init__(self, setup: MetaSetup, layout: ObservationLayout, frame: Singles) -> None:
        self.setup, self._frame = setup, frame
        num_envs = len(frame)
        self._most = setup.trials
        self._rows = np.arange(num_envs)
        self.task = np.zeros(num_envs, np.int64)
        self.trials = np.zeros(num_envs, np.int64)
        self.elapsed_s = np.zeros(num_envs)
        self.places = np.full(num_envs, NOWHERE, np.intp)
        self.values: Floats = np.zeros((num_envs, len(setup.data.objectives)))
        self.entropy, self.low, self.high = np.ones(num_envs), np.zeros(num_envs), np.ones(num_envs)
        self.scores, self.best, self.share = (
            np.zeros(num_envs),
            np.zeros(num_envs),
            np.zeros(num_envs),
        )
        self.best_trial = np.zeros(num_envs, np.int64)
        # No views of the frame are stored: a copy of this object would still read the old frame.
        self._slices = layout.columns
        self._columns = {name: columns.start for name, columns in layout.columns.items()}
        self._time, self._loss = map(setup.data.objectives.index, ("time_s", LOSS))

    def draws(self) -> EpisodeDraws:
        """Return the draws of the tasks of episodes."""
        start, count = partial(named_stream, "meta_tasks"), len(self.setup.instances)
        return EpisodeDraws(len(self._frame), count, start, noisy=self.noisy)

    @abstractmethod
    def _begin(self, where: Indices, tasks: Integers, keys: Keys) -> Floats:
        """Set the tasks of some episodes; return their (n, facts) features."""

    @abstractmethod
    def _answer(self, actions: NDArray[Any]) -> tuple[Floats, Singles]:
        """Write reported `values`; return (N,) noise-free scores and (N, F) features."""

    @abstractmethod
    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        """Return the configuration of the last trial of an episode."""

    @abstractmethod
    def fidelity(self, index: int) -> dict[str, Value]:
        """Return the fidelity of the last trial of an episode."""

    def truth(self, index: int) -> Floats | None:
        """Return the (Q,) noise-free values of the last trial; None if trials have no noise."""
        return None

    def restart(self, where: Indices, tasks: Sequence[int], keys: Keys = None) -> None:
        """Begin episodes of some tasks; keys seed their noise."""
        task_indices = np.asarray(tasks, np.int64)
        self.task[where] = task_indices
        self.trials[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = self.best[where] = self.share[where] = 0.0
        self._frame[where] = 0.0
        self._frame[where, self._columns["remaining_budget"]] = 1.0
        self._frame[where, self._slices["task"]] = self._begin(where, task_indices, keys)

    def describe(self, index: int) -> dict[str, Any]:
        """Return the `info` of `reset` about an episode: its task and the source of its numbers."""
        return self.setup.describe(int(self.task[index]))

    def step(self, actions: NDArray[Any]) -> Floats:
        """Take one action per episode; return the (N,) gains of the normalised incumbents."""
        rows, frame, most = self._rows, self._frame, self._most
        noise_free_scores, features = self._answer(actions)
        self.scores = self.scores_of(self.values)
        slot = np.minimum(self.trials, most - 1)
        width = features.shape[1]
        start = self._columns["history"] + slot * width
        frame[rows[:, None], start[:, None] + np.arange(width)] = features
        frame[rows, self._columns["scores"] + slot] = self.scores
        self.trials += 1
        frame[:, self._columns["trials"]] = np.minimum(self.trials, most)
        frame[:, self._columns["remaining_budget"]] = np.maximum(1.0 - self.trials / most, 0.0)
        self.elapsed_s += self.values[:, self._time]
        before = self.share
        better = (self.scores > self.best) | (self.best_trial == 0)
        self.best = np.where(better, self.scores, self.best)
        self.best_trial = np.where(better, self.trials, self.best_trial)
        reached = (noise_free_scores - self.low) / np.where(
            self.high > self.low, self.high - self.low, 1.0
        )
        self.share = np.where(better, np.clip(reached, 0.0, 1.0), before)
        return self.share - before

    def scores_of(self, values: Floats) -> Floats:
        """Return the (N,) scores of (N, Q) values."""
        return explained_entropy(values[:, self._loss], self.entropy)

    @property
    def over(self) -> Bools:
        """(N,) whether the budget is spent."""
        return np.asarray(self.trials >= self._most)

    def untried(self, index: int) -> Bools:
        """Return the (P,) mask of the untried configurations of an episode's pool."""
        if "mask" not in self._slices:
            raise InvalidArgumentError(
                "`action_masks` must be called on environments with a pool; here any action is "
                "allowed"
            )
        return np.asarray(self._frame[index, self._slices["mask"]] > 0)
