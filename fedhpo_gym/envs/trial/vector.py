"""The vector form of the trial environments: N of them as arrays, on any backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.envs.batched.base import Actions, BatchedVectorEnv, Seeds, StepOutcome
from fedhpo_gym.envs.batched.layout import Indices, Mask
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.env import TrialEnv, describe_trial
from fedhpo_gym.envs.trial.history import Trial
from fedhpo_gym.envs.trial.ledger import charge
from fedhpo_gym.envs.trial.make import make_trial_env
from fedhpo_gym.envs.trial.scores import ERROR, PENALTY, ROUNDS, SHOWN, TIME_S, Scorer
from fedhpo_gym.envs.trial.sources import make_row_source
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty


def make_trial_vector_env(
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    **arguments: Any,
) -> TrialVectorEnv:
    """Build N trial environments as one; the vector entry point of every `FedHPO-*` id.

    Args:
        num_envs: N.
        autoreset_mode: "NextStep", "SameStep" or "Disabled"; see `BatchedVectorEnv`.
        copy: hand out copies of the observations; see `BatchedVectorEnv`.
        arguments: see `build_trial_env`; all environments have the same.

    Raises:
        InvalidArgumentError: an argument is unknown or out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the backend has nothing to answer from; says what to do.
    """
    if arguments.get("render_mode") is not None:
        raise InvalidArgumentError(
            "`render_mode` must be None for a vector environment, got "
            f"{arguments['render_mode']!r}; draw one environment made by `gymnasium.make`"
        )
    env = make_trial_env(**arguments)
    return TrialVectorEnv(num_envs, env, autoreset_mode=autoreset_mode, copy=copy)


@dataclass
class Progress:
    """The state of N episodes.

    Attributes:
        trials: (N,) trials since reset.
        rounds: (N,) communication rounds paid for since reset.
        elapsed_s: (N,) simulated seconds since reset.
        asked: (N,) handles of the last queries; see `RowSource`.
        numbers: (N, columns) what the last trials brought; see `Scorer`.
        best: (N,) handles of the incumbents' queries.
        best_trial: (N,) numbers of the incumbents.
        best_numbers: (N, columns) what the incumbents brought; NaN before the first trial.
    """

    trials: NDArray[np.int64]
    rounds: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    asked: NDArray[Any]
    numbers: NDArray[np.float64]
    best: NDArray[Any]
    best_trial: NDArray[np.int64]
    best_numbers: NDArray[np.float64]

    @classmethod
    def start(cls, num_envs: int, columns: int, handle_type: type) -> Progress:
        """Return the state of N episodes before their first trial."""
        return cls(
            trials=np.zeros(num_envs, np.int64),
            rounds=np.zeros(num_envs, np.int64),
            elapsed_s=np.zeros(num_envs),
            asked=np.zeros(num_envs, handle_type),
            numbers=np.zeros((num_envs, columns)),
            best=np.zeros(num_envs, handle_type),
            best_trial=np.zeros(num_envs, np.int64),
            best_numbers=np.full((num_envs, columns), np.nan),
        )

    def restart(self, where: Indices) -> None:
        """Start some episodes again."""
        self.trials[where] = self.rounds[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = 0.0
        self.best_numbers[where] = np.nan

    def add(self, asked: NDArray[Any], numbers: NDArray[np.float64]) -> Indices:
        """Add a trial to every episode; return those in which it is the new incumbent."""
        self.asked, self.numbers = asked, numbers
        self.trials += 1
        self.rounds += numbers[:, ROUNDS].astype(np.int64)
        self.elapsed_s += numbers[:, TIME_S]
        # Not "lower": the first trial is better than NaN, whatever its error.
        better = np.flatnonzero(~(numbers[:, ERROR] >= self.best_numbers[:, ERROR]))
        self.best[better] = asked[better]
        self.best_trial[better] = self.trials[better]
        self.best_numbers[better] = numbers[better]
        return better


class TrialVectorEnv(BatchedVectorEnv):
    """N trial environments with the default wrappers, exactly as `gymnasium.make` builds them.

    On a table, everything that does not depend on the past is computed once for all cells, at the
    first step; a step is then one look-up. Other backends are asked at every step,
    all queries together.

    **Info** of a step, in Gymnasium's vector form (arrays, and a mask `_key` beside every `key`):
    `trial`, `elapsed_s`, `objectives`, `cost` (`time_s`, `rounds`), `incumbent` (`trial`) and,
    where the reward is scalar, `penalty`. `trial_info(i)` gives all that a single environment says.
    What a single environment says at `reset` comes with `reset` only, not with an autoreset.

    Attributes:
        reward_space: bounds of the reward vector of one environment. Rewards are (N,) float64, or
            (N, objectives) float32 on `MO-` ids, as MO-Gymnasium's vector environments return them.
    """

    def __init__(
        self,
        num_envs: int,
        env: gym.Env[Any, Any],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        """Create the vector form of an environment.

        Args:
            num_envs: N.
            env: a trial environment with its default wrappers.
            autoreset_mode: see `BatchedVectorEnv`.
            copy: see `BatchedVectorEnv`.

        Raises:
            InvalidArgumentError: an argument is out of its range.
        """
        self._scalarize = env if isinstance(env, ScalarizePenalty) else None
        budget = self._scalarize.env if self._scalarize else env
        assert isinstance(budget, BudgetTermination)  # noqa: S101 - what make_trial_env builds
        trial = budget.unwrapped
        assert isinstance(trial, TrialEnv)  # noqa: S101 - likewise
        self._budget, self._env = budget, trial
        spaces, actions = env.observation_space, env.action_space
        assert isinstance(spaces, gym.spaces.Dict)  # noqa: S101 - likewise
        assert isinstance(actions, gym.spaces.Box)  # noqa: S101 - likewise
        super().__init__(num_envs, spaces, actions, autoreset_mode=autoreset_mode, copy=copy)
        self._spaces = spaces
        self.reward_space = self._env.reward_space
        self._scorer = Scorer(self._env, self._scalarize, self.layout)
        self._source = make_row_source(self._env, self._scorer, num_envs)
        self._progress = Progress.start(
            num_envs, self._scorer.values.stop, self._source.handle_type
        )
        self._incumbents = np.zeros((num_envs, len(self.search_space)), dtype=np.float32)
        self._first = np.zeros(self.layout.size, dtype=np.float32)
        first, _ = env.reset()
        self.layout.fill(self._first, first)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, in the order of the reward vector."""
        return self._env.objectives

    @property
    def search_space(self) -> SearchSpace:
        """What an action is decoded to; see `TrialEnv.search_space`."""
        return self._env.search_space

    def trial_info(self, index: int) -> dict[str, Any]:
        """Return what environment `index` alone would say in `info` about its last trial.

        Raises:
            InvalidArgumentError: there is no such environment, or no trial since its reset.
        """
        state, task = self._progress, self._env.task
        if not 0 <= index < self.num_envs or not state.trials[index]:
            raise InvalidArgumentError(
                f"`index` must be one of {self.num_envs} environments, after its first trial, "
                f"got {index!r}"
            )
        last = self._trial(state.asked[index], state.numbers[index], state.trials[index], index)
        best = self._trial(
            state.best[index], state.best_numbers[index], state.best_trial[index], index
        )
        evaluation = self._env.backend.evaluate(last.configuration, last.fidelity)
        rounds = int(state.numbers[index, ROUNDS])
        size = task.parameters_of(last.configuration)
        cost = charge(task, size, rounds, last.fidelity.client_sample_rate)
        info = describe_trial(last, best, evaluation, cost)
        if self._scalarize is not None:
            info["penalty"] = float(state.numbers[index, PENALTY])
        return info

    def _trial(
        self, handle: Any, numbers: NDArray[np.float64], number: np.int64, index: int
    ) -> Trial:
        configuration, fidelity = self._source.query(handle)
        names = [objective.name for objective in self.objectives]
        return Trial(
            number=int(number),
            configuration=configuration,
            fidelity=fidelity,
            action=self._incumbents[index].copy(),
            values=dict(zip(names, numbers[self._scorer.values].tolist(), strict=True)),
            error=float(numbers[ERROR]),
            elapsed_s=float(self._progress.elapsed_s[index]),
        )

    def _describe(self, index: int) -> dict[str, Any]:
        return self._env.describe()

    def _restart(self, where: Indices, seeds: Seeds) -> None:
        self._progress.restart(where)
        self._source.restart(where)
        self._frame[where] = self._first

    def _advance(self, actions: Actions, active: Mask) -> StepOutcome:
        asked, numbers = self._source.answer(actions, active, self._frame)
        state = self._progress
        better = state.add(asked, numbers)
        left = self._budget.left(state.elapsed_s, state.rounds, state.trials)
        self._show(actions, better, left)
        rewards = numbers[:, self._scorer.rewards]
        scalar = self._scalarize is not None
        return StepOutcome(
            rewards=rewards[:, 0].copy() if scalar else rewards.astype(np.float32),
            terminated=left <= 0.0,
            truncated=np.zeros(self.num_envs, dtype=np.bool_),
            info=self._info(numbers),
        )

    def _show(self, actions: Actions, better: Indices, left: NDArray[np.float64]) -> None:
        """Write what depends on the past into the observations."""
        state, inside = self._progress, observation.inside
        chosen = actions[better].astype(np.float32)
        self._incumbents[better] = inside(self._spaces, "incumbent", chosen)
        shown = state.best_numbers[:, SHOWN, None]
        parts = {
            "elapsed_time": inside(self._spaces, "elapsed_time", state.elapsed_s[:, None]),
            "trials": inside(self._spaces, "trials", state.trials[:, None]),
            "incumbent": self._incumbents,
            "incumbent_value": inside(self._spaces, "incumbent_value", shown),
            "remaining_budget": np.maximum(left, 0.0).astype(np.float32)[:, None],
        }
        self.layout.fill(self._frame, parts)

    def _info(self, numbers: NDArray[np.float64]) -> dict[str, Any]:
        values = numbers[:, self._scorer.values]
        names = [objective.name for objective in self.objectives]
        info: dict[str, Any] = {
            "trial": self._progress.trials,
            "elapsed_s": self._progress.elapsed_s,
            "objectives": {name: values[:, column] for column, name in enumerate(names)},
            "cost": {
                "time_s": numbers[:, TIME_S],
                "rounds": numbers[:, ROUNDS].astype(np.int64),
            },
            "incumbent": {"trial": self._progress.best_trial},
        }
        if self._scalarize is not None:
            info["penalty"] = numbers[:, PENALTY]
        return info
