"""The vector form of the trial environments: N of them as arrays, on any backend."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.checks import as_integer
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.evaluator import TIME_S, VIOLATION
from fedhpo_gym.envs.trial.process import INFO_KEYS, Numbers, TrialProcess
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.vector import (
    Actions,
    BatchedVectorEnv,
    Indices,
    Mask,
    Seeds,
    StepOutcome,
    checked_keys,
)
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.typed import shown
from fedhpo_gym.wrappers.budget import Budget, with_remaining
from fedhpo_gym.wrappers.rewards import IncumbentValue, Penalty

if TYPE_CHECKING:
    from fedhpo_gym.envs.trial.truth import Truth


class TrialVectorEnv(BatchedVectorEnv):
    """N trial environments with the default wrappers, exactly as `gymnasium.make` builds them.

    On a table, everything that does not depend on the past is computed once for all cells, at the
    first step; a step is then one look-up. Other backends are asked at every step,
    all queries together.

    **Info** of a step, in Gymnasium's vector form (arrays, and a mask `_key` beside every `key`):
    `trial`, `elapsed_s`, `objectives`, `cost` (`time_s`, `rounds`), `incumbent` (`trial`) and,
    where the reward is scalar, `score` and `penalty`; and what `info_keys` name. `trial_info(i)`
    gives all that a single environment says. What a single environment says at `reset` comes with
    `reset` only, not with an autoreset.

    Attributes:
        reward_space: bounds of the reward vector of one environment. Rewards are (N,) float64, or
            (N, objectives) float32 on `MO-` ids, as MO-Gymnasium's vector environments return them.
    """

    def __init__(
        self,
        num_envs: int,
        setup: TrialSetup,
        budget: Budget,
        penalty: Penalty | None = None,
        incumbent: IncumbentValue | None = None,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        info_keys: Sequence[str] = (),
    ) -> None:
        """Create N environments.

        Args:
            num_envs: N.
            setup: what is asked of whom.
            budget: what an episode may spend.
            penalty: what makes rewards one number; None leaves them vectors.
            incumbent: what rewards the incumbent in the place of the trial.
            autoreset_mode: as `BatchedVectorEnv` says.
            copy: as `BatchedVectorEnv` says.
            info_keys: of `INFO_KEYS`, what infos say, too.

        Raises:
            InvalidArgumentError: an argument is out of its range.
            UnknownNameError: there is no such info key.
        """
        spaces = with_remaining(setup.observation_space)
        super().__init__(
            num_envs, spaces, setup.action_space, autoreset_mode=autoreset_mode, copy=copy
        )
        self.setup, self.reward_space = setup, setup.reward_space
        self._budget, self._penalty, self._incumbent = budget, penalty, incumbent
        self._info_keys = checked_keys(info_keys, INFO_KEYS)
        self._process = TrialProcess(setup, self.layout, self._frame)
        self._draws = self._process.draws()
        self._potentials = np.zeros(self.num_envs)
        self._known_optima: dict[int, float] = {}
        self._optima = np.full(self.num_envs, self._optimum(0))
        self._remaining = self.layout.columns["remaining_budget"].start
        self._first = np.zeros(self.layout.size, dtype=np.float32)
        self.layout.fill(self._first, observation.empty(setup.task, setup.observation_space))
        self._first[self._remaining] = 1.0

    def close_extras(self, **_: Any) -> None:
        """End what the backend started."""
        for part in self.setup.parts:
            part.backend.close()

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, in the order of the reward vector."""
        return self.setup.objectives

    @property
    def search_space(self) -> SearchSpace:
        """What an action is decoded to (`TrialEnv.search_space`)."""
        return self.setup.search_space

    def trial_info(self, index: int) -> dict[str, Any]:
        """Return what environment `index` alone would say in `info` about its last trial.

        With autoreset "SameStep" the last trial of an episode is over by then: `info_keys` bring
        all of it into `final_info`.

        Raises:
            InvalidArgumentError: there is no such environment, or no trial since its reset.
        """
        state = self._process.episodes
        number = as_integer(index)
        known = number is not None and 0 <= number < self.num_envs
        if not known or not state.trials[number]:
            raise InvalidArgumentError(
                f"`index` must be one of {self.num_envs} environments, after its first trial, "
                f"got {shown(index)}"
            )
        info = self._process.info(index)
        if self._penalty is not None:
            scores = state.numbers[index, self._process.scores]
            penalty = float(self._penalty.of(scores))
            info.update(score=float(scores[0]) - penalty, penalty=penalty)
        return info

    def truth(self, index: int) -> Truth:
        """Return what can be reached in the episode of environment `index` (`TrialEnv.truth`).

        Raises:
            InvalidArgumentError: the backend trains.
        """
        return self._process.part(index).truth

    def _describe(self, index: int) -> dict[str, Any]:
        return self._process.describe(index)

    @property
    def _options(self) -> tuple[str, ...]:
        return ("instance",) if self.setup.instances else ()

    def _restart(self, where: Indices, seeds: Seeds) -> None:
        options = [self._chosen(index) for index in where.tolist()]
        self._process.restart(where, *self._draws.draw(where, seeds, options))
        self._potentials[where] = 0.0
        if self.setup.instances:
            self._optima[where] = [self._optimum(index) for index in where.tolist()]
        self._frame[where] = self._first
        self._process.show_instances(self._frame)

    def _optimum(self, index: int) -> float:
        number = self._process.instance(index)
        if self._incumbent is not None and number not in self._known_optima:
            trials = functools.partial(self._process.all_trials, index)
            self._known_optima[number] = self._incumbent.find_optimum(trials)
        return self._known_optima.get(number, 1.0)

    def _advance(self, actions: Actions, active: Mask) -> StepOutcome:
        numbers = self._process.step(actions, active)
        state = self._process.episodes
        left = self._budget.left(state.elapsed_s, state.rounds, state.trials)
        self._frame[:, self._remaining] = np.maximum(left, 0.0)
        scores = numbers[:, self._process.scores]
        info = self._process.infos(self._info_keys)
        if self._penalty is None:
            rewards: NDArray[np.floating] = scores.astype(np.float32)
        else:
            info["penalty"] = self._penalty.of(scores)
            info["score"] = rewards = scores[:, 0] - info["penalty"]
        if self._incumbent is not None:
            rewards = self._reward(self._incumbent, numbers)
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return StepOutcome(rewards, left <= 0.0, never, info)

    def _reward(self, kind: IncumbentValue, numbers: Numbers) -> NDArray[np.float64]:
        before = self._potentials
        best = self._process.episodes.best_numbers
        values = self._process.values(best)[:, 0]
        self._potentials = kind.potential(values, best[:, VIOLATION])
        elapsed_s = self._process.episodes.elapsed_s
        times_s = numbers[:, TIME_S]
        return kind.rewards(before, self._potentials, times_s, elapsed_s, self._optima)
