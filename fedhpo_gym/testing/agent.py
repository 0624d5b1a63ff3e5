"""The laws of an agent."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.agents import Agent, Step, agent_class, make_agent, run_episode
from fedhpo_gym.errors import InvalidArgumentError, MissingDependencyError
from fedhpo_gym.testing.analytic import make_env
from fedhpo_gym.testing.rollout import plain

TRIALS = 8


class AgentConformance:
    """Laws of a registered agent, on an environment whose backend is a formula.

    Attributes:
        name: key in `AGENTS`. The laws are skipped where its library is not installed.
    """

    name: ClassVar[str]

    def make(self, env: gym.Env[Any, Any], seed: int = 0) -> Agent:
        """Return a new agent for an environment, or skip the law."""
        try:
            return make_agent(self.name, env.action_space, seed)
        except MissingDependencyError as error:
            pytest.skip(str(error))

    def test_it_runs_an_episode_with_legal_actions(self) -> None:
        steps = self._episode(seed=0)
        assert len(steps) == TRIALS
        space = make_env().action_space
        for step in steps:
            assert step.action.dtype == np.float32
            assert step.action in space

    def test_equal_seeds_do_the_same(self) -> None:
        assert self._actions(seed=5) == self._actions(seed=5)

    def test_the_seed_matters(self) -> None:
        assert self._actions(seed=0) != self._actions(seed=1)

    def test_it_never_repeats_one_action_only(self) -> None:
        assert len({str(action) for action in self._actions(seed=0)}) > 1

    def test_it_leaves_global_random_numbers_alone(self) -> None:
        before = plain(list(np.random.get_state()))  # noqa: NPY002 - this is what is watched
        self._episode(seed=0)
        assert plain(list(np.random.get_state())) == before  # noqa: NPY002

    def test_it_does_not_write_into_what_it_is_shown(self) -> None:
        env = make_env(budget_trials=TRIALS)
        agent = self.make(env)
        observation, _ = env.reset(seed=0)
        for _ in range(3):
            action = agent.ask(observation)
            observation, reward, terminated, _, info = env.step(action)
            before = plain([action, observation, info])
            agent.tell(action, float(reward), observation, terminated, info)
            assert plain([action, observation, info]) == before

    def test_it_refuses_a_space_it_cannot_act_in(self) -> None:
        self.make(make_env())
        with pytest.raises(InvalidArgumentError, match="action_space"):
            agent_class(self.name)(gym.spaces.Discrete(3), 0)

    def _episode(self, seed: int) -> list[Step]:
        env = make_env(budget_trials=TRIALS)
        return list(run_episode(env, self.make(env, seed), seed=0))

    def _actions(self, seed: int) -> list[Any]:
        actions: list[NDArray[np.float32]] = [step.action for step in self._episode(seed)]
        return [plain(action) for action in actions]
