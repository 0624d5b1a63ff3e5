"""The trial environment: a step is one function evaluation f(configuration, fidelity)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend, make_backend
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.history import History, Trial
from fedhpo_gym.envs.trial.ledger import CostLedger
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import METRICS, Cost, Evaluation, Fidelity
from fedhpo_gym.objectives import Objective, get_objective
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.privacy import privacy_spent

DEFAULT_OBJECTIVES = ("val_loss", "fairness_std", "epsilon")

Observation = dict[str, NDArray[np.float32]]
Info = dict[str, Any]


class TrialEnv(gym.Env[Observation, NDArray[np.float32]]):
    """Federated hyperparameter optimisation, one evaluation per step.

    **Action**: Box [-1, 1]^n, float32. One coordinate per dimension of the search space, then one
    per fidelity dimension (`round`, `client_sample_rate`) that is not fixed. A coordinate is
    decoded by `SearchSpace.decode`: log scales, integers and grids are handled there, so that a
    uniform action is a uniform configuration. On a grid, the coordinate selects the nearest cell.

    **Observation**: a dictionary of float32 arrays; of the last trial unless said otherwise:

    ==================  =====  =================================================================
    key                 shape  meaning
    ==================  =====  =================================================================
    `loss`              (2,)   mean cross-entropy on train and validation data, nats, clipped at
                               `MAX_LOSS`
    `accuracy`          (2,)   accuracy on train and validation data, in [0, 1]
    `f1`                (2,)   macro-F1 on train and validation data, in [0, 1]
    `fairness`          (6,)   `FAIRNESS_NAMES` of the clients' validation accuracy
    `privacy`           (5,)   `PRIVACY_NAMES` spent, see `fedhpo_gym.tasks.privacy`
    `elapsed_time`      (1,)   simulated seconds since reset
    `trials`            (1,)   trials since reset
    `incumbent`         (n,)   action coordinates of the best trial so far; zeros before the first
    `incumbent_value`   (1,)   error of its first objective, lower is better
    ==================  =====  =================================================================

    `BudgetTermination` adds `remaining_budget` (1,). Test data never enter an observation; they
    are in `info["test"]`.

    **Reward**: the vector of scores (higher is better, clipped to `reward_space`) of the
    objectives. `ScalarizePenalty` makes it one number.

    **Episode**: starts with an empty history; never ends by itself, `BudgetTermination` ends it.

    Attributes:
        task: the task.
        backend: where numbers come from.
        objectives: what the entries of the reward are.
        reward_space: bounds of the reward vector.
    """

    # Gymnasium declares it on instances, so it cannot be a ClassVar here.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["human", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        task: Task,
        backend: Backend,
        *,
        objectives: Sequence[str] = DEFAULT_OBJECTIVES,
        fidelity: Mapping[str, Value] | None = None,
        grid: bool = False,
        freeze_thaw: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            task: the task.
            backend: where numbers come from.
            objectives: names of the objectives; the first ranks trials.
            fidelity: fidelity dimensions fixed; they leave the action.
            grid: offer only the grid of the task's tables, whatever the backend could answer.
            freeze_thaw: more rounds of a configuration already tried cost only the difference.
            render_mode: "human", "rgb_array" or None.

        Raises:
            UnknownNameError: an objective or a fidelity dimension does not exist.
            InvalidArgumentError: an argument is out of its range.
            OffGridError: a fixed fidelity is not on the grid.
        """
        if not objectives or isinstance(objectives, str):
            raise InvalidArgumentError(
                f"`objectives` must be a list with at least one name, got {objectives!r}"
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InvalidArgumentError(
                f"`render_mode` must be one of {self.metadata['render_modes']}, got {render_mode!r}"
            )
        self.task = task
        self.render_mode = render_mode
        self._objective_names = tuple(objectives)
        self._fixed = dict(fidelity or {})
        self._grid = grid
        self._costs = CostLedger(task, freeze_thaw)
        self._history = History()
        self._window: int | None = None
        self._set_backend(backend)
        scores = [sorted((o.score(o.bounds[0]), o.score(o.bounds[1]))) for o in self.objectives]
        low, high = np.array(scores, dtype=np.float32).T
        self.reward_space = gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, in the order of the reward vector."""
        return tuple(get_objective(name) for name in self._objective_names)

    @property
    def search_space(self) -> SearchSpace:
        """What an action is decoded to: configuration, then free fidelity dimensions."""
        return self._space

    @property
    def fixed(self) -> dict[str, Value]:
        """Fidelity dimensions fixed, by name."""
        return dict(self._fixed)

    @property
    def freeze_thaw(self) -> bool:
        """Whether training that was paid for once is not paid again."""
        return self._costs.freeze_thaw

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials since reset."""
        return tuple(self._history.trials)

    @property
    def fidelity_space(self) -> SearchSpace:
        """The fidelities that the backend answers."""
        return self.backend.fidelity_space

    def use_backend(self, name: str, **options: Any) -> None:
        """Exchange the backend; the next `reset` starts on it.

        Raises:
            UnknownNameError: no such backend.
            MissingDataError: it has nothing to answer from.
        """
        options.setdefault("seed", self.backend.seed)
        self._set_backend(make_backend(name, self.task, **options))

    def _set_backend(self, backend: Backend) -> None:
        space, fidelities = backend.space, backend.fidelity_space
        if self._grid:
            space = self.task.space.discretized()
            fidelities = self.task.stored_fidelity_space().within(fidelities)
        for name, value in self._fixed.items():
            fidelities[name].validate(value, "fidelity")
        free = fidelities.fix(self._fixed)
        self.backend = backend
        self._num_hyperparameters = len(space)
        self._space = SearchSpace((*space.dimensions, *free.dimensions))
        size = len(self._space)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self._seen = observation.space(size, self.objectives[0])
        self.observation_space = self._seen  # type: ignore[assignment]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Forget all trials and set the simulated clock to zero."""
        super().reset(seed=seed, options=options)
        self._history = History()
        self._costs.reset()
        if self.render_mode == "human":
            self.render()
        return observation.empty(self._seen), self.describe()

    def describe(self) -> Info:
        """Return what `reset` says: where the numbers of the coming episode come from."""
        return {
            "task": self.task.name,
            "backend": self.backend.name,
            "fingerprint": self.backend.fingerprint,
            "seeds": list(self.backend.seeds),
            "objective_names": list(self._objective_names),
        }

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, NDArray[np.float32], bool, bool, Info]:
        """Evaluate one configuration at one fidelity.

        Raises:
            InvalidArgumentError: the action is not in the action space.
        """
        configuration, fidelity = self.decode(action)
        evaluation = self.backend.evaluate(configuration, fidelity)
        cost = self._costs.pay(configuration, fidelity)
        objectives = self.objectives
        privacy = privacy_spent(self.task, configuration, fidelity)
        values = {o.name: o.compute(evaluation, privacy) for o in objectives}
        trial = Trial(
            number=len(self._history.trials) + 1,
            configuration=configuration,
            fidelity=fidelity,
            action=np.array(action, dtype=np.float32),
            values=values,
            error=objectives[0].unclipped_error(values[objectives[0].name]),
            elapsed_s=self._costs.elapsed_s,
        )
        self._history.add(trial)
        reward = np.array([o.score(values[o.name]) for o in objectives], dtype=np.float32)
        seen = observation.observe(self._seen, evaluation, privacy, self._history, objectives[0])
        info = describe_trial(trial, self._history.incumbent, evaluation, cost)
        if self.render_mode == "human":
            self.render()
        return seen, reward, False, False, info

    def decode(self, action: NDArray[np.floating]) -> tuple[dict[str, Value], Fidelity]:
        """Return the configuration and the fidelity that an (n,) action asks for.

        Raises:
            InvalidArgumentError: the action is not in the action space.
        """
        return self.query(self._space.decode(action))

    def query(self, values: Mapping[str, Value]) -> tuple[dict[str, Value], Fidelity]:
        """Return the configuration and the fidelity that values of `search_space` stand for."""
        names = self._space.names
        configuration = {name: values[name] for name in names[: self._num_hyperparameters]}
        chosen = {**self._fixed, **{n: values[n] for n in names[self._num_hyperparameters :]}}
        return configuration, Fidelity(int(chosen["round"]), float(chosen["client_sample_rate"]))

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the incumbent against simulated time.

        Returns:
            (height, width, 3) uint8 pixels in mode "rgb_array", else None.

        Raises:
            MissingDependencyError: the extra `plot` is not installed, or "human" has no display.
        """
        if self.render_mode is None:
            return None
        from fedhpo_gym.envs import rendering

        plot = functools.partial(
            rendering.plot_history,
            history=self._history,
            title=self.task.name,
            objective=self._objective_names[0],
        )
        if self.render_mode == "human":
            self._window = rendering.show(plot, self._window)
            return None
        return rendering.draw(plot)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            from fedhpo_gym.envs import rendering

            rendering.close(self._window)
            self._window = None


def describe_trial(trial: Trial, incumbent: Trial, evaluation: Evaluation, cost: Cost) -> Info:
    """Return the `info` of a step as plain data."""
    return {
        "trial": trial.number,
        "configuration": dict(trial.configuration),
        "fidelity": asdict(trial.fidelity),
        "objectives": dict(trial.values),
        "cost": asdict(cost),
        "elapsed_s": trial.elapsed_s,
        "incumbent": {
            "trial": incumbent.number,
            "configuration": dict(incumbent.configuration),
            "fidelity": asdict(incumbent.fidelity),
            **incumbent.values,
        },
        "test": {metric: evaluation.mean("test", metric) for metric in METRICS},
        "best_round": evaluation.best_round.tolist(),
        "diverged": bool(evaluation.diverged.any()),
    }
