"""Episodes on generated tasks, which a meta-model of federations defines by their numbers.

`env` uses `GeneratedSetup` and `GeneratedProcess` for the ids `FedHPO-Generated-*`;
`stored/task_generator.py` evaluates the tasks. A task is a number below 2^32, so that every episode
can have a new task. Fidelities are cells of a grid: index of the client sample rate x rounds +
index of the round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats, Indices, Integers, Singles
from fedhpo_gym.core.checks import as_integer, check_fields, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.seeding import streams
from fedhpo_gym.envs.meta.setup import DEFAULT_OBJECTIVES, TRIALS, Keys, MetaProcess, MetaSetup
from fedhpo_gym.envs.vector import ObservationLayout, named_stream
from fedhpo_gym.evaluation.records import SourceTask
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.meta_data import explained_entropy
from fedhpo_gym.stored.task_generator import (
    TASKS,
    GeneratedTasks,
    TaskGenerator,
    heavy,
    open_generator,
)
from fedhpo_gym.tasks.federated import fidelity_grid

MOST_TRIALS: Final = 1000
SOURCES, SOURCE_TRIALS = 25, 200
"""Number of source tasks for transfer learning, and of the trials of each."""
NOISES: Final = ("frozen", "fresh", "none")
CANDIDATES: Final = 4096
"""Random actions whose values a truth holds, besides those of the search for the optimum."""


@dataclass(frozen=True, kw_only=True)
class GeneratedArguments:
    """Arguments of `gymnasium.make` for `FedHPO-Generated-*` ids, besides rendering.

    Attributes:
        space: "LR" or "Joint".
        instances: a number below 2^32 that is a task, or several; by default, all of them.
        trials: trials of an episode.
        fidelity: `round` and `client_sample_rate` of all trials, from the grid of the generator;
            each is the highest by default.
        choose_fidelity: let trials choose the fidelities that `fidelity` does not fix, by
            coordinates after those of the configuration.
        noise: effect of the random seed of a training: "frozen", always the same for a
            configuration of a task, as for stored numbers; "fresh", a new draw at every trial; or
            "none". Regret and scalar rewards use the noise-free score of the incumbent, which is
            chosen by reported scores; `info["truth"]` has the noise-free values.
        objectives: names of the objectives of vector rewards, from those of the generator.
        vector_reward: let the reward be the scores of all objectives.
    """

    space: str
    instances: int | Sequence[int] | None = None
    trials: int = TRIALS
    fidelity: Mapping[str, Value] | None = None
    choose_fidelity: bool = False
    noise: str = "frozen"
    objectives: Sequence[str] = DEFAULT_OBJECTIVES
    vector_reward: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require_known("kind of noise", self.noise, NOISES)

    def open(self) -> "GeneratedSetup":
        """Open the generator, or raise `MissingDataError` if it is not on this machine."""
        return GeneratedSetup(open_generator(self.space), self)


class GeneratedSetup(MetaSetup):
    """A generator of tasks, with the arguments of an environment."""

    data: TaskGenerator

    def __init__(self, data: TaskGenerator, arguments: GeneratedArguments) -> None:
        super().__init__(arguments, data, MOST_TRIALS)
        requested = arguments.instances
        numbers_or_none = [requested] if isinstance(requested, int) else requested
        self.instances = (
            range(TASKS) if numbers_or_none is None else tuple(dict.fromkeys(numbers_or_none))
        )
        numbers = () if numbers_or_none is None else map(as_integer, self.instances)
        if not self.instances or any(
            number is None or not 0 <= number < TASKS for number in numbers
        ):
            raise InvalidArgumentError(
                f"`instances` must be integers from 0 to {TASKS - 1}, at least one, got "
                f"{short_repr(requested)}"
            )
        free = [n for n in ("client_sample_rate", "round") if n not in (arguments.fidelity or {})]
        if arguments.choose_fidelity:
            grid = fidelity_grid(data.rounds, data.rates)
            self.fidelity_space = SearchSpace(tuple(grid[name] for name in free))

    @cached_property
    def search_space(self) -> SearchSpace:
        return SearchSpace((*self.data.space.dimensions, *self.fidelity_space.dimensions))

    def entries(self) -> dict[str, tuple[float, float, int]]:
        shapes, free = super().entries(), len(self.fidelity_space)
        return shapes | ({"fidelities": (0.0, 1.0, self.trials * free)} if free else {})

    def process(self, layout: ObservationLayout, frame: Singles) -> "GeneratedProcess":
        return GeneratedProcess(self, layout, frame)

    def describe(self, task: int) -> dict[str, Any]:
        return {"task": f"{self.data.name} {self.instances[task]}", **super().describe(task)}

    def draw(self, tasks: Sequence[int]) -> GeneratedTasks:
        """Return some of the tasks, with their optima at the highest fidelity of trials."""
        return self.data.draw([self.instances[i] for i in tasks], self.cell)

    @property
    def cell(self) -> int:
        """Index of the highest fidelity that trials have."""
        return self.data.cell(*self.fixed.values())

    @cached_property
    def first(self) -> GeneratedTasks:
        """The first task."""
        return self.draw([0])

    def _answers(self, actions: Singles) -> tuple[Floats, Floats]:
        tasks = self.first.at(np.zeros(len(actions), np.intp))
        features = self.data.space.rounded_features(actions)
        return self.data.evaluate(tasks, features, np.full(len(actions), self.cell))

    def predicted(self, actions: Singles) -> Floats:
        return self._answers(actions)[0][:, self.columns]

    def lattice(self) -> tuple[Singles, Floats]:
        size, task = (CANDIDATES, len(self.data.space)), self.first
        random_actions = named_stream("generated_truth", 0).uniform(-1, 1, size).astype(np.float32)
        elites = self.data.arrays["elites"][task.network[0]]
        actions = np.concatenate([task.best_action, elites, random_actions])
        values, losses = self._answers(actions)
        no_better = losses >= losses[0]  # so that regret equals that of episodes
        return actions[no_better], values[no_better][:, self.columns]

    def source_tasks(self, task_indices: Sequence[int]) -> tuple[SourceTask, ...]:
        """Return other tasks of the generator; the same numbers and trials for every environment.

        Their trials are noise-free, and chosen fidelities are at their highest.
        """
        excluded = {self.instances[i] for i in task_indices} if len(task_indices) < TASKS else set()
        free = np.ones((SOURCE_TRIALS, len(self.fidelity_space)), np.float32)
        return tuple(
            source._replace(actions=np.hstack([source.actions, free]))
            for task_number, source in _source_tasks(self.data).items()
            if task_number not in excluded
        )[:SOURCES]


@lru_cache(maxsize=4)
def _source_tasks(data: TaskGenerator) -> dict[int, SourceTask]:
    """Return twice as many tasks as needed, by number, since the target tasks are left out."""
    rng = named_stream("generated_sources", 0)
    numbers = rng.integers(TASKS, size=2 * SOURCES).tolist()
    tasks = data.draw(numbers)
    actions = rng.uniform(-1, 1, (SOURCE_TRIALS, len(data.space))).astype(np.float32)
    sources = {}
    for i, task_number in enumerate(numbers):
        scores = data.true_scores(tasks.at(np.full(SOURCE_TRIALS, i)), actions)
        sources[task_number] = SourceTask(
            f"{data.name} {task_number}", actions, scores, tasks.facts[i]
        )
    return sources


class GeneratedProcess(MetaProcess):
    """Episodes on generated tasks; their progress is a share of the known optimum."""

    setup: GeneratedSetup

    def __init__(self, setup: GeneratedSetup, layout: ObservationLayout, frame: Singles) -> None:
        super().__init__(setup, layout, frame)
        num_envs = len(frame)
        self._tasks = setup.first.at(np.zeros(num_envs, np.intp))
        self._cells = np.full(num_envs, setup.cell)
        self.noisy = setup.arguments.noise == "fresh"
        factors = setup.data.arrays["noise"].shape[1] if self.noisy else 0
        self._noise = np.zeros((num_envs, setup.trials, factors))

    def _begin(self, where: Indices, tasks: Integers, keys: Keys) -> Floats:
        fresh = self.setup.draw(tasks.tolist())
        self._tasks.replace(where, fresh)
        self.entropy[where], self.high[where] = fresh.entropy, fresh.best
        if keys is not None:
            shape = self._noise.shape[1:]
            rngs = streams("generated_noise", [(key,) for key in keys.tolist()])
            draws = [(rng.standard_normal(shape), rng.random(shape[0])) for rng in rngs]
            self._noise[where] = [heavy(*draw) for draw in draws]
        return fresh.facts

    def _answer(self, actions: NDArray[Any]) -> tuple[Floats, Singles]:
        setup, data, size = self.setup, self.setup.data, len(self.setup.data.space)
        features = data.space.rounded_features(np.asarray(actions[:, :size], np.float32))
        if len(setup.fidelity_space):
            self._cells = self._chosen(np.asarray(actions[:, size:], np.float32))
        noise = None
        if self.noisy:
            noise = self._noise[self._rows, np.minimum(self.trials, setup.trials - 1)]
        elif setup.arguments.noise == "frozen":
            noise = data.frozen_noise(self._tasks.number, features)
        self._features = features
        self.values, losses = data.evaluate(self._tasks, features, self._cells, noise)
        return explained_entropy(losses, self.entropy), features.astype(np.float32)

    def truth(self, index: int) -> Floats | None:
        if self.setup.arguments.noise == "none":
            return None
        rows = np.array([index])
        tasks, features, cells = self._tasks.at(rows), self._features[rows], self._cells[rows]
        return np.asarray(self.setup.data.evaluate(tasks, features, cells)[0][0])

    def _chosen(self, coordinates: Singles) -> NDArray[np.intp]:
        """Return the (N,) fidelity cells that actions choose, and write them to observations."""
        setup, grids = self.setup, self.setup.fidelity_grids
        columns = setup.fidelity_space.decode_columns(coordinates)
        places = {
            name: np.searchsorted(grids[name], columns.get(name, setup.fixed[name]))
            for name in grids
        }
        free = len(setup.fidelity_space)
        start = self._columns["fidelities"] + free * np.minimum(self.trials, setup.trials - 1)
        shares = np.clip((coordinates + 1.0) * 0.5, 0.0, 1.0)
        self._frame[self._rows[:, None], start[:, None] + np.arange(free)] = shares
        cells = places["client_sample_rate"] * len(grids["round"]) + places["round"]
        return np.broadcast_to(cells, len(coordinates)).astype(np.intp)

    def configuration(self, index: int, action: NDArray[Any]) -> dict[str, Value]:
        data = self.setup.data
        return data.space.decode(np.asarray(action[: len(data.space)], np.float64))

    def fidelity(self, index: int) -> dict[str, Value]:
        rate, round_ = divmod(int(self._cells[index]), len(self.setup.data.rounds))
        return {
            "round": self.setup.data.rounds[round_],
            "client_sample_rate": self.setup.data.rates[rate],
        }
