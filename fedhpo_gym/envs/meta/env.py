"""The environments of FedHPO-B and of generated tasks: a step is one trial of one of many tasks.

The entry points at the end of the module belong to the ids `FedHPO-B-*` and `FedHPO-Generated-*`.
`MetaEnv` runs one episode and `MetaVectorEnv` many; both let a `MetaProcess` compute their steps,
so that they return the same bits. A setup (`MetaSetup`) holds the tasks; each reset draws one of
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.arrays import Bools
from fedhpo_gym.core.checks import as_integer, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs import vector
from fedhpo_gym.envs.arguments import check_own, parse_arguments, with_signature_of
from fedhpo_gym.envs.meta.generated import GeneratedArguments
from fedhpo_gym.envs.meta.pools import PoolArguments
from fedhpo_gym.envs.meta.setup import NOWHERE, MetaProcess, MetaSetup, MetaTruth, meta_truth_of
from fedhpo_gym.envs.rendering import SetupEnv, plot_scores
from fedhpo_gym.evaluation.records import SourceTask
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.space.space import checked_action
from fedhpo_gym.stored.meta_data import COSTS

Observation = dict[str, NDArray[np.float32]]
Info = dict[str, Any]


class MetaEnv(SetupEnv):
    """Tuning one of many federations, one trial per step.

    **Action**: in a pool by default Discrete(P), the index of an evaluated configuration. With
    `actions="coordinates"`, Box [-1, 1]^d, which selects the nearest untried configuration; with
    `continuous=True`, and in generated tasks, any coordinates are evaluated. The order of a pool
    carries no information. An index may be tried again, with the same result.

    **Observation**: float32 arrays, with T trials an episode, P configurations and F features:

    ===================  ======  ==================================================================
    key                  shape   meaning
    ===================  ======  ==================================================================
    `history`            (T F,)  configurations tried (`SearchSpace.features`), one after the other,
                                 then zeros
    `scores`             (T,)    their scores: the share of the labels' entropy that the model
                                 explains on validation data, 0 where it is useless
    `trials`             (1,)    trials since reset
    `remaining_budget`   (1,)    share of the trials that remain
    `task`               (9,)    features of the federation, known before any trial (`FEATURES` of
                                 `fedhpo_gym.building.meta_data`)
    `pool`               (P F,)  configurations to choose from, with a pool
    `mask`               (P,)    1 for untried configurations, with a pool
    `fidelities`         (T k,)  fidelities of trials, in [0, 1], where trials choose k of them
    ===================  ======  ==================================================================

    **Reward**: the increase of the best score so far, as a share of the range of scores of the
    pool, or of the optimum: a return is 1 minus the normalised regret. On `MO-` ids the reward is
    the vector of the scores of all objectives.

    **Episode**: terminates after T trials.

    Attributes:
        setup: the tasks, and the arguments of the environment.
        step_kind: "trial".
        reward_space: bounds of the reward vector.
        budget_s: None: only the number of trials limits an episode.
    """

    setup: MetaSetup
    _process: MetaProcess
    budget_s = None

    def __init__(self, setup: MetaSetup, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._follow(setup)
        self._process = setup.process(self._layout, self._frame)
        self._draws = self._process.draws()
        self._scores: list[float] = []
        self._incumbent: Info = {}
        self._true_incumbent: Info = {}

    @property
    def fidelity_space(self) -> SearchSpace:
        """The fidelity dimensions that a trial may choose."""
        return self.setup.fidelity_space

    @property
    def source_tasks(self) -> tuple[SourceTask, ...]:
        """Tasks for transfer learning, without those that share data with the task of the episode.

        Before a reset, all tasks of `instances`, and those that share data with them, are left out.
        """
        every = range(len(self.setup.instances))
        return self.setup.source_tasks([int(self._process.task[0])] if self._ready else every)

    @property
    def instances(self) -> Sequence[Any]:
        """The tasks that a reset draws from: names of real tasks, numbers of generated ones."""
        return self.setup.instances

    @property
    def vector_reward(self) -> bool:
        """Whether the reward is a vector."""
        return bool(self.setup.arguments.vector_reward)

    @cached_property
    def truth(self) -> MetaTruth:
        """The truth of the task, if `instances` is one task."""
        return meta_truth_of(self.setup)

    @cached_property
    def full_truth(self) -> MetaTruth:
        """The truth at full fidelity, independent of the fidelity of trials."""
        arguments = replace(self.setup.arguments, fidelity=None)
        return meta_truth_of(type(self.setup)(self.setup.data, arguments))  # type: ignore[call-arg]

    def candidates(self) -> NDArray[np.float32] | None:
        """Return the (c, d) coordinates of untried configurations; None if any are allowed."""
        actions = self.setup.candidates(int(self._process.task[0]))
        if actions is None:
            return None
        untried = self._process.untried(0) if self._ready else np.ones(len(actions), np.bool_)
        return np.asarray(actions[untried] if untried.any() else actions)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the (P,) mask of untried configurations, for MaskablePPO of SB3-Contrib."""
        return self._process.untried(0)

    def _begin(self) -> None:
        self._scores, self._ready = [], True

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, Info]:
        """Evaluate one configuration.

        Raises:
            ResetNeeded: there was no `reset` yet, or the episode is over.
            InvalidArgumentError: the action is not in the action space.
        """
        process = self._process
        if not self._ready or process.over[0]:
            raise gym.error.ResetNeeded("call `reset` before `step`: an episode starts there")
        checked = self._checked(action)
        gain = process.step(checked[None])
        self._scores.append(float(process.scores[0]))
        if self.render_mode == "human":
            self.render()
        reward: Any = float(gain[0])
        if self.vector_reward:
            reward = self.setup.vector_of(process.values)[0].astype(np.float32)
        return self._observation(), reward, bool(process.over[0]), False, self._info(checked)

    def _checked(self, action: Any) -> NDArray[Any]:
        if self.setup.by_index:
            # Policies return an integer as an array of one.
            is_array = isinstance(action, np.ndarray) and action.size == 1
            index = as_integer(action.item() if is_array else action)
            count = self.action_space.n  # type: ignore[attr-defined]
            if index is None or not 0 <= index < count:
                raise InvalidArgumentError(
                    f"`action` must be an integer from 0 to {count - 1}, got {short_repr(action)}"
                )
            return np.asarray(index, np.intp)
        return checked_action(action, self.action_space.shape)

    def _info(self, action: NDArray[Any]) -> Info:
        process, setup = self._process, self.setup
        values = dict(zip(setup.data.objectives, process.values[0].tolist(), strict=True))
        trial, score = int(process.trials[0]), float(process.scores[0])
        configuration, pool_index = process.configuration(0, action), int(process.places[0])
        fidelity = process.fidelity(0)
        if process.best_trial[0] == trial:
            incumbent = {"trial": trial, "configuration": configuration, "score": score}
            self._incumbent = {**incumbent, "val_loss": values["val_loss"]}
        best, noise_free_values = self._incumbent, process.truth(0)
        truth: dict[str, Any] = {}
        if noise_free_values is not None:
            names = [name.name for name in self.objectives]
            noise_free = dict(zip(names, noise_free_values[setup.columns].tolist(), strict=True))
            if best["trial"] == trial:
                self._true_incumbent = dict(noise_free)
            truth["truth"] = {"objectives": noise_free, "incumbent": dict(self._true_incumbent)}
        return {
            **truth,
            "trial": trial,
            **({} if pool_index == NOWHERE else {"place": pool_index}),
            "configuration": dict(configuration),
            "fidelity": fidelity,
            "objectives": {name.name: values[name.name] for name in setup.objectives},
            "cost": {**{name: values[name] for name in COSTS}, "rounds": fidelity["round"]},
            "test": {"loss": values["test_loss"], "accuracy": 1.0 - values["test_error"]},
            "score": score,
            "elapsed_s": float(process.elapsed_s[0]),
            "diverged": values["val_loss"] >= LARGEST,
            "incumbent": {**best, "configuration": dict(best["configuration"])},
            "normalised_regret": 1.0 - float(process.share[0]),
        }

    def _plot(self, figure: Any) -> None:
        plot_scores(figure, self._scores, self.describe()["task"] if self._ready else "")


class MetaVectorEnv(vector.BatchedVectorEnv):
    """Many episodes of `MetaEnv`, with the same bits, whose steps are computed together."""

    _process: MetaProcess

    def __init__(
        self,
        num_envs: int,
        setup: MetaSetup,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        super().__init__(
            num_envs,
            setup.observation_space,
            setup.action_space,
            autoreset_mode=autoreset_mode,
            copy=copy,
        )
        self.setup, self.reward_space = setup, setup.reward_space
        self._process = setup.process(self.layout, self._frame)
        self._draws = self._process.draws()

    @property
    def search_space(self) -> SearchSpace:
        """The configurations, and the fidelity dimensions that a trial may choose."""
        return self.setup.search_space

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the (N, P) masks of untried configurations."""
        return np.stack([self._process.untried(index) for index in range(self.num_envs)])

    def _checked(self, actions: ArrayLike, active: Bools) -> vector.Actions:
        if not self.setup.by_index:
            return super()._checked(actions, active)
        count = int(self.single_action_space.n)  # type: ignore[attr-defined]
        try:
            array = np.asarray(actions)
        except ValueError:  # a ragged sequence
            array = np.empty(0)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"`actions` must be {self.num_envs} integers, got {short_repr(actions)}"
            )
        if array.min() < 0 or array.max() >= count:
            bad = np.flatnonzero(active & ((array < 0) | (array >= count)))
            if bad.size:
                raise InvalidArgumentError(
                    f"`actions[{bad[0]}]` must be from 0 to {count - 1}, got {array[bad[0]]}"
                )
            array = np.where(active, array, 0)
        return array.astype(np.intp, copy=False)

    def _advance(self, actions: vector.Actions, active: Bools) -> vector.StepOutcome:
        process, setup = self._process, self.setup
        rewards: NDArray[np.floating] = process.step(actions)
        if setup.arguments.vector_reward:
            rewards = setup.vector_of(process.values).astype(np.float32)
        info = {
            "trial": process.trials,
            "score": process.scores,
            "elapsed_s": process.elapsed_s,
            "incumbent": {"trial": process.best_trial, "score": process.best},
        }
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return vector.StepOutcome(rewards, process.over, never, info)


def _entry_points(
    record: type[PoolArguments | GeneratedArguments],
) -> tuple[Callable[..., MetaEnv], Callable[..., MetaVectorEnv]]:
    """Return the entry points of single and vector environments for a record of arguments."""

    @with_signature_of(record)
    def make_env(*, render_mode: str | None = None, **arguments: Any) -> MetaEnv:
        check_own(make_env, {"render_mode": render_mode})
        setup = parse_arguments(record, arguments, ("render_mode",), "space").open()
        return MetaEnv(setup, render_mode=render_mode)

    @with_signature_of(record)
    def make_vector_env(
        *,
        num_envs: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **arguments: Any,
    ) -> MetaVectorEnv:
        setup = parse_arguments(record, arguments, ("autoreset_mode", "copy"), "space").open()
        return MetaVectorEnv(num_envs, setup, autoreset_mode=autoreset_mode, copy=copy)

    return make_env, make_vector_env


make_pool_env, make_pool_vector_env = _entry_points(PoolArguments)
make_generated_env, make_generated_vector_env = _entry_points(GeneratedArguments)
