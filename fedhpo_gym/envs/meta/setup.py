"""Episodes on many tasks of one search space: their process, and what can be reached in one."""

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
    """What the episodes on tasks of one search space share; M objectives, Q values, d dimensions.

    Attributes:
        arguments: what the environment was made with.
        data: where numbers come from.
        trials: trials of an episode.
        fidelity_grids: rounds and client sample rates that are answered.
        fixed: the fidelity of all trials, but what they choose themselves.
        objectives: the M objectives.
    """

    data: MetaData | TaskGenerator
    instances: Sequence[Any]
    """The tasks that an episode may have, which are known by their positions here."""
    by_index = False
    """Whether an action is a place in the pool."""
    fidelity_space = SearchSpace(())
    """What a trial may choose of its fidelity."""

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
        """What the coordinates of an action mean."""
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
        """How many features a configuration has."""
        return int(self.data.space.features(np.zeros((1, len(self.data.space)))).shape[1])

    @cached_property
    def reward_space(self) -> gym.spaces.Box:
        low, high = np.array(
            [objective.score_bounds for objective in self.objectives], np.float32
        ).T
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def columns(self) -> list[int]:
        """Where among the Q values those of the M objectives are."""
        return [self.data.objectives.index(objective.name) for objective in self.objectives]

    def vector_of(self, values: Floats) -> Floats:
        """Return the (N, M) scores of the objectives, higher is better, of (N, Q) values."""
        pairs = zip(self.objectives, self.columns, strict=True)
        return np.stack(
            [-objective.errors(values[:, column]) for objective, column in pairs], axis=1
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what opens it again: its arguments, not its data."""
        return type(self.arguments).open, (self.arguments,)

    @abstractmethod
    def process(self, layout: ObservationLayout, frame: Singles) -> "MetaProcess":
        """Return the process of as many episodes as there are rows in a frame."""

    def candidates(self, task: int) -> Singles | None:
        """Return the (P, d) coordinates that may be chosen in a task; None for any."""
        return None

    @abstractmethod
    def source_tasks(self, task_indices: Sequence[int]) -> tuple[SourceTask, ...]:
        """Return what agents may learn from that are to solve some of the tasks."""

    exact = False
    """Whether nothing but the lattice may be taken."""

    @abstractmethod
    def lattice(self) -> tuple[Singles, Floats]:
        """Return (n, d) actions of which values are known in the one task, and (n, M) values."""

    def configuration(self, actions: Singles, row: int) -> dict[str, Value]:
        """Return the configuration of a row of the lattice."""
        return self.data.space.decode(actions[row])

    @abstractmethod
    def predicted(self, actions: Singles) -> Floats:
        """Return the (n, M) values of actions in the one task, where any may be taken."""

    def describe(self, task: int) -> dict[str, Any]:
        """Return what `reset` says of an episode."""
        return {
            "instance": task,
            "objective_names": [objective.name for objective in self.objectives],
            "fingerprint": self.data.fingerprint,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MetaTruth(Truth):
    """The values of all objectives, of every configuration of a task's pool.

    Of a surrogate they are of every configuration that any task of the space has, and of a
    generated task of those where its optimum was searched, and of draws that are no better.
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
            # Rounding moves an action less.
            (off_pool,) = np.nonzero(self._distances(actions).min(axis=1) > 1e-9)
            if off_pool.size:
                raise OffGridError(
                    f"`configurations` must be in the pool of {self._setup.instances[0]}, got "
                    f"{short_repr(configurations[off_pool[0]])}; `truth.query(i)` says the i-th"
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
        """Return the (n, M) values of actions: the surrogate's, or of the nearest in the pool."""
        if not self.exact:
            return self._setup.predicted(actions)
        return np.asarray(self.values[self._distances(actions).argmin(axis=1)])

    def _distances(self, actions: Singles) -> Floats:
        """Return the squares of (n, P) distances of actions from the pool."""
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
"""Place of what is not in the pool."""
Keys = Integers | None


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
        # No views of the frame are kept: in a copy they would be of other numbers.
        self._slices = layout.columns
        self._columns = {name: columns.start for name, columns in layout.columns.items()}
        self._time, self._loss = map(setup.data.objectives.index, ("time_s", LOSS))

    def draws(self) -> EpisodeDraws:
        """Return what chooses the tasks of episodes."""
        start, count = partial(named_stream, "meta_tasks"), len(self.setup.instances)
        return EpisodeDraws(len(self._frame), count, start, noisy=self.noisy)

    @abstractmethod
    def _begin(self, where: Indices, tasks: Integers, keys: Keys) -> Floats:
        """Take up the tasks of some episodes; return the (n, facts) that are known of them."""

    @abstractmethod
    def _answer(self, actions: NDArray[Any]) -> tuple[Floats, Singles]:
        """Write what is told into `values`; return (N,) true scores and (N, F) features."""

    @abstractmethod
    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        """Return the configuration that the last step of an episode tried."""

    @abstractmethod
    def fidelity(self, index: int) -> dict[str, Value]:
        """Return the fidelity that the last step of an episode tried it at."""

    def truth(self, index: int) -> Floats | None:
        """Return the (Q,) values of an episode's last trial without noise; None if it had none."""
        return None

    def restart(self, where: Indices, tasks: Sequence[int], keys: Keys = None) -> None:
        """Begin episodes of some tasks, of which keys seed the noise."""
        task_indices = np.asarray(tasks, np.int64)
        self.task[where] = task_indices
        self.trials[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = self.best[where] = self.share[where] = 0.0
        self._frame[where] = 0.0
        self._frame[where, self._columns["remaining_budget"]] = 1.0
        self._frame[where, self._slices["task"]] = self._begin(where, task_indices, keys)

    def describe(self, index: int) -> dict[str, Any]:
        """Return what `reset` says of an episode: its task, and where its numbers come from."""
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
        """Return the (P,) places of the pool of an episode that were not tried."""
        if "mask" not in self._slices:
            raise InvalidArgumentError(
                "`action_masks` must be asked where actions are of a pool, here any may be taken"
            )
        return np.asarray(self._frame[index, self._slices["mask"]] > 0)
