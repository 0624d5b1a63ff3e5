"""The vector form of the round environments: N courses that take their rounds as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode

from fedhpo_gym.checks import as_integer
from fedhpo_gym.envs.round.process import RoundProcess
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
from fedhpo_gym.typed import shown

INFO_KEYS: Final = ("configuration", "fidelity")
"""What `info` holds only on request."""


class RoundVectorEnv(BatchedVectorEnv):
    """N round environments, bit for bit those of `gymnasium.make`, trained as one batch.

    Courses are trained as one tensor program, whatever their instances and rounds. Those that share
    minibatches also share matrix products: those on the same instance, at the same round, with the
    same batch size, epochs and number of clients. `reset(options={"instance": i})` takes one index
    for all environments, or N of them.

    **Info** of a step, in Gymnasium's vector form (arrays, and a mask `_key` beside every `key`):
    numbers as in `RoundEnv`, and the lists over clients as (N, clients) arrays. `step_info(i)`
    gives all that a single environment says. What a single environment says at `reset` comes with
    `reset` only, not with an autoreset. On request (`info_keys`), at some cost per environment:
    "configuration", with an array and a mask for every hyperparameter, and the whole "fidelity",
    of which only `round` is there otherwise.

    Attributes:
        process: the decision process.
        reward_space: bounds of the reward vector of one environment. Rewards are (N,) float64, or
            (N, rewards) float32 on `MO-` ids.
    """

    def __init__(
        self,
        process: RoundProcess,
        *,
        info_keys: Sequence[str] = (),
        vector_reward: bool = False,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        """Create the vector form of a process.

        Args:
            process: a process of N episodes.
            info_keys: what `info` shall also hold, of `INFO_KEYS`.
            vector_reward: return reward vectors.
            autoreset_mode: as `BatchedVectorEnv` says.
            copy: as `BatchedVectorEnv` says.

        Raises:
            InvalidArgumentError: an argument is out of its range.
            UnknownNameError: there is no such info key.
        """
        checked_keys(info_keys, INFO_KEYS)
        super().__init__(
            len(process.episodes.over),
            process.observation_space,
            process.controls.action_space,
            autoreset_mode=autoreset_mode,
            copy=copy,
        )
        self.process = process
        self.reward_space = process.reward_space
        self._info_keys = frozenset(info_keys)
        self._vector_reward = vector_reward
        self._no_rewards = np.zeros(self.num_envs)
        if vector_reward:
            self._no_rewards = np.zeros((self.num_envs, *self.reward_space.shape), np.float32)
        self._draws = process.draws()

    def step_info(self, index: int) -> dict[str, Any]:
        """Return the `info` that a single environment returns with its last step.

        Raises:
            InvalidArgumentError: there is no such environment, or it has not stepped yet.
        """
        number = as_integer(index)
        known = number is not None and 0 <= number < self.num_envs
        if not known or not self.process.episodes.steps[number]:
            raise InvalidArgumentError(
                f"`index` must name one of {self.num_envs} environments that has stepped since its "
                f"reset, got {shown(index)}"
            )
        return self.process.info(index)

    @property
    def _options(self) -> tuple[str, ...]:
        return ("instance",)

    def _restart(self, where: Indices, seeds: Seeds) -> None:
        options = [self._chosen(index) for index in where.tolist()]
        self.process.start(where, *self._draws.draw(where, seeds, options))
        self._show()

    def _advance(self, actions: Actions, active: Mask) -> StepOutcome:
        never = np.zeros(self.num_envs, dtype=np.bool_)
        if not active.any():  # all are about to be reset: nothing is trained
            return StepOutcome(
                self._no_rewards.copy(), never, never.copy(), self.process.infos(self._info_keys)
            )
        outcome = self.process.step(actions)
        self._show()
        rewards = outcome.vectors if self._vector_reward else outcome.scalars
        return StepOutcome(
            rewards.copy(), outcome.terminated.copy(), never, self.process.infos(self._info_keys)
        )

    def _show(self) -> None:
        self.layout.fill(self._frame, self.process.observe())

    def _describe(self, index: int) -> dict[str, Any]:
        return self.process.describe(index)
