"""MO-Gymnasium's own vector forms and wrappers take `MO-` ids as they are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids

mo_vector = pytest.importorskip("mo_gymnasium.wrappers.vector", reason="mo-gymnasium: extra check")

ID = "MO-FedHPO-LR-BreastCancer-v1"
OPTIONS: dict[str, Any] = {"budget_trials": 3, "disable_env_checker": True}


def one() -> gym.Env[Any, Any]:
    return gym.make(ID, **OPTIONS)


def test_its_vector_form_returns_what_ours_does() -> None:
    theirs, ours = (
        mo_vector.MOSyncVectorEnv([one, one]),
        gym.make_vec(ID, num_envs=2, budget_trials=3),
    )
    for envs in (theirs, ours):
        envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(8):  # two episodes, and what is between them
        actions = rng.uniform(-1, 1, ours.action_space.shape).astype(np.float32)  # type: ignore[arg-type]
        (seen, *found, _), (expected, *wanted, _) = theirs.step(actions), ours.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert all(np.array_equal(seen[name], expected[name]) for name in expected)


def test_its_statistics_add_up_our_rewards() -> None:
    envs = mo_vector.MORecordEpisodeStatistics(gym.make_vec(ID, num_envs=2, budget_trials=3))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    total = np.zeros((2, 3))
    for _ in range(3):
        _, rewards, terminated, _, info = envs.step(envs.action_space.sample())
        total += rewards
    assert terminated.all()
    assert one().unwrapped.reward_dim == 3  # type: ignore[attr-defined]
    assert np.allclose(info["episode"]["r"], total)
