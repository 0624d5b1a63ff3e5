"""Evolved policies find what is best, and all candidates play the same episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents.policy import Policy, load_policy, save_policy
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.testing.analytic import AnalyticRounds

pytest.importorskip("cmaes")
from fedhpo_gym.agents.evolution import evolve_policy

ID = "FedHPO-DAC-Quadratic-v1"


@pytest.fixture
def one_step() -> Iterator[str]:
    """Register rounds that end after one step; the best action is 0.5 in all dimensions."""
    name = "OneStep-v0"
    gym.register(name, AnalyticRounds, kwargs={"horizon": 1, "sampled": 5})
    yield name
    del gym.registry[name]


@pytest.mark.slow
def test_the_best_action_of_one_step_is_found(one_step: str) -> None:
    training = evolve_policy(one_step, steps=3000, seed=0, layers=(), episodes=1, population=8)
    shown = {"remaining_rounds": np.ones(1), "val_loss": np.full(1, 3.0)}
    np.testing.assert_allclose(training.policy.act(shown), 0.5, atol=0.02)
    assert training.episode_returns[-8:].mean() > training.episode_returns[:8].mean()


@pytest.mark.slow
def test_a_seed_decides_everything_and_steps_are_counted(tmp_path: Any) -> None:
    def evolve(seed: int, **options: Any) -> Policy:
        entries = ("val_loss", "remaining_budget")
        arguments: dict[str, Any] = {"layers": (4,), "entries": entries, "population": 4}
        return evolve_policy(ID, steps=900, seed=seed, episodes=3, **arguments, **options).policy

    seen: list[int] = []
    judged: list[tuple[int, int]] = []
    first = evolve(
        0,
        progress=seen.append,
        judge=lambda steps, policy: judged.append((steps, policy.origin["steps"])),
        judge_every=300,
    )
    again, other = evolve(0), evolve(1)
    for a, b, c in zip(first.weights, again.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)
    assert first.origin["steps"] == sum(seen) >= 900
    assert all(steps == said for steps, said in judged)
    assert len(judged) > 1
    shown = gym.make(ID).reset(seed=0)[0]
    save_policy(first, tmp_path)
    np.testing.assert_array_equal(load_policy(tmp_path).act(shown), first.act(shown))


@pytest.mark.slow
def test_candidates_play_the_same_episodes_and_a_return_is_that_of_one_episode() -> None:
    # As good as no spread: all candidates are the middle of the space, and share their episodes.
    given: Any = {"dynamic": ["learning_rate"]}
    training = evolve_policy(
        ID, steps=1, seed=0, sigma=1e-9, population=5, episodes=3, env_arguments=given
    )
    rows = training.episode_returns.reshape(5, 3)
    np.testing.assert_allclose(rows, rows[:1].repeat(5, axis=0), atol=1e-6)
    assert len(np.unique(rows[0])) == 3
    env = gym.make(ID, **given)
    possible = []
    for index in range(len(env.unwrapped.instances)):  # type: ignore[attr-defined]
        env.reset(options={"instance": index})
        total, ended = 0.0, False
        while not ended:
            _, reward, ended, _, _ = env.step(np.zeros(1, np.float32))
            total += float(reward)
        possible.append(total)
    assert all(np.abs(np.array(possible) - one).min() < 1e-6 for one in rows[0])


def test_steps_are_a_number_of_steps() -> None:
    with pytest.raises(InvalidArgumentError, match="`steps` must be at least 1, got 0"):
        evolve_policy(ID, steps=0, seed=0)
