"""The laws of the round environments of a task."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.testing.rollout import go_on, plain, rollout
from fedhpo_gym.testing.task import TaskConformance


class RoundConformance(TaskConformance):
    """Laws of `FedHPO-DAC-*` and `MO-FedHPO-DAC-*` of a task: those of a task, and their own."""

    @property
    def env_id(self) -> str:
        return self.task.round_id

    def arguments(self) -> dict[str, Any]:
        return {
            "rounds_per_step": 1,
            "horizon": 5,
            "client_sample_rate": self.task.fidelity_space["client_sample_rate"].low,
            "instances": [[self.task.alpha, seed] for seed in (100, 101)],
        }

    # A law of trials: the incumbent of a course is its best step, and its reward another one.
    test_the_return_is_how_good_the_incumbent_is = None  # type: ignore[assignment]

    def test_both_rewards_are_the_scores_of_the_objectives(self) -> None:
        vector, scalar = self.make("MO-"), self.make(time_price=0.25)
        space: gym.spaces.Box = vector.get_wrapper_attr("reward_space")
        for (_, scores, *_, info), (_, reward, *_, same) in zip(
            self._episode(vector), self._episode(scalar), strict=True
        ):
            assert plain(info) == plain(same)
            assert scores in space
            assert type(reward) is float
            np.testing.assert_allclose(scores[0] + 0.25 * scores[1], reward, rtol=1e-5, atol=1e-6)

    def test_an_episode_ends_with_its_horizon(self) -> None:
        steps = self._episode(self.make())
        assert [step[2] for step in steps[:-1]] == [False] * (len(steps) - 1)
        observation, _, terminated, truncated, info = steps[-1]
        assert terminated
        assert not truncated
        assert info["diverged"] or info["fidelity"]["round"] == 5
        assert info["diverged"] or observation["remaining_rounds"] == 0.0

    def test_a_snapshot_is_gone_back_to_any_number_of_times(self) -> None:
        env = self.make()
        course: Any = env.unwrapped
        rollout(env, steps=1)
        snapshot = course.snapshot()
        seen = plain(course.restore(snapshot))
        first = self._replayed(env, snapshot)
        assert plain(course.restore(snapshot)) == seen
        assert self._replayed(env, snapshot) == first
        fresh = self.make()
        fresh.reset(seed=11)
        assert self._replayed(fresh, snapshot) == first

    def test_an_instance_can_be_chosen(self) -> None:
        env = self.make()
        number = len(env.get_wrapper_attr("instances")) - 1
        first = plain(env.reset(seed=0, options={"instance": number}))
        _, info = env.reset(seed=1, options={"instance": number})
        assert info["instance"]["index"] == number
        assert plain(env.reset(seed=2, options={"instance": number})) == first

    def _replayed(self, env: gym.Env[Any, Any], snapshot: Any) -> list[Any]:
        course: Any = env.unwrapped
        course.restore(snapshot)
        env.action_space.seed(3)
        return go_on(env, 1)

    def _episode(self, env: gym.Env[Any, Any]) -> list[Any]:
        env.reset(seed=0)
        env.action_space.seed(0)
        steps: list[Any] = []
        while not (steps and steps[-1][2]):
            action: NDArray[np.float32] = env.action_space.sample()
            steps.append(env.step(action))
        return steps
