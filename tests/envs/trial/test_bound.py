"""Every episode ends: a bound on trials holds where a budget is never spent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.testing import make_env
from fedhpo_gym.wrappers.budget import MAX_TRIALS, BudgetTermination

ID = "FedHPO-LR-CreditG-v0"
FREE: dict[str, dict[str, Any]] = {
    "freeze-thaw": {"freeze_thaw": True},
    "no cost": {
        "system": {
            "client_upload_bytes_per_s": 1e300,
            "client_download_bytes_per_s": 1e300,
            "server_upload_bytes_per_s": 1e300,
            "client_compute_mean_s": 0,
        }
    },
    "endless time": {"budget_s": 1e300},
}


def length(env: gym.Env[Any, Any], limit: int) -> int:
    """Return the steps of an episode that repeats one trial."""
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape or (), np.float32)
    for number in range(1, limit + 1):
        observation, _, terminated, truncated, _ = env.step(action)
        assert not truncated
        if terminated:
            assert observation["remaining_budget"] == 0.0
            return number
        assert observation["remaining_budget"] > 0.0
    return 0


@pytest.mark.parametrize("kind", FREE)
def test_an_episode_whose_budget_is_never_spent_ends(kind: str) -> None:
    env = gym.make(ID, disable_env_checker=True, max_trials=40, **FREE[kind])
    assert length(env, 50) == 40


def test_by_default_it_ends_after_more_trials_than_any_run_makes() -> None:
    env = make_env(freeze_thaw=True)
    env = env if isinstance(env, BudgetTermination) else env.env  # type: ignore[attr-defined]
    assert isinstance(env, BudgetTermination)
    assert env.budget.left(0.0, 0, MAX_TRIALS - 1) == 1.0
    assert env.budget.left(0.0, 0, MAX_TRIALS) == 0.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"budget_trials": 7}, 7),
        ({"budget_trials": 7, "max_trials": 3}, 3),
        ({"max_trials": 9}, 9),
    ],
)
def test_budget_trials_takes_its_place(arguments: dict[str, Any], expected: int) -> None:
    env = gym.make(ID, disable_env_checker=True, freeze_thaw=True, **arguments)
    assert length(env, 20) == expected


def test_budget_trials_may_be_above_the_default() -> None:
    env = BudgetTermination(make_env(vector_reward=True).unwrapped, budget_trials=2 * MAX_TRIALS)
    assert env.budget.left(0.0, 0, MAX_TRIALS) == 0.5


@pytest.mark.parametrize("kind", FREE)
def test_the_vector_form_ends_at_the_same_trial(kind: str) -> None:
    arguments: dict[str, Any] = {"max_trials": 5, **FREE[kind]}
    single = gym.make(ID, disable_env_checker=True, **arguments)
    vector = gym.make_vec(ID, num_envs=2, **arguments)
    vector.reset(seed=0)
    single.reset(seed=0)
    action = np.full(single.action_space.shape or (), 0.3, np.float32)
    for number in range(1, 6):
        seen, reward, over, _, _ = single.step(action)
        many, rewards, overs, _, _ = vector.step(np.stack([action, action]))
        assert over == (number == 5)
        assert overs.tolist() == [over, over]
        assert rewards.tolist() == [reward, reward]
        for name, values in seen.items():
            assert np.array_equal(many[name][0], values)


def test_a_spec_without_the_bound_is_made_again() -> None:
    env = gym.make(ID)
    assert env.spec is not None
    assert all("max_trials" not in (w.kwargs or {}) for w in env.spec.additional_wrappers)
    bounded = gym.make(ID, max_trials=4)
    assert bounded.spec is not None
    assert length(gym.make(bounded.spec), 6) == 4
