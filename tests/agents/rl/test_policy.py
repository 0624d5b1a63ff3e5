"""A policy is plain arrays: it acts alone as in a batch, and comes back from a file as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.agents import agent_class
from fedhpo_gym.agents.policy import OUTPUTS, Policy, load_policy, save_policy
from fedhpo_gym.agents.training import Training
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from problems import box_problem


def make_policy(activation: str = "tanh", output: str = "clip", seed: int = 0) -> Policy:
    """Return a policy with random weights that reads (3,) `a` and (2, 2) `b`."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(0.0, 0.5, (40, 2)).astype(np.float32)
    widths = [7, 64, 64, 40 if output == "argmax" else 2]
    pairs = list(pairwise(widths))
    return Policy(
        entries={"b": (2, 2), "a": (3,)},
        low=np.array([-1.0, 0.0], np.float32),
        high=np.array([1.0, 3.0], np.float32),
        weights=tuple(rng.normal(0.0, 0.15, pair).astype(np.float32) for pair in pairs),
        biases=tuple(rng.normal(size=pair[1]).astype(np.float32) for pair in pairs),
        activation=activation,
        output=output,
        mean=rng.normal(size=7),
        deviation=rng.uniform(0.5, 2.0, 7),
        limit=3.0,
        made_by="python train.py",
        origin={"seed": seed},
        moves=moves if output == "argmax" else None,
    )


def observations(number: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "a": rng.normal(size=(number, 3), scale=5.0).astype(np.float32),
        "b": rng.normal(size=(number, 2, 2)).astype(np.float32),
        "last_action": rng.uniform(0, 1, (number, 2)).astype(np.float32),
    }


def test_an_action_computed_by_hand() -> None:
    policy = Policy(
        entries={"x": (2,)},
        low=np.array([-1.0], np.float32),
        high=np.array([1.0], np.float32),
        weights=(np.eye(2, dtype=np.float32), np.array([[0.5], [0.25]], np.float32)),
        biases=(np.zeros(2, np.float32), np.array([0.125], np.float32)),
        activation="relu",
        output="clip",
        mean=np.array([1.0, 0.0]),
        deviation=np.array([2.0, 1.0]),
        limit=0.75,
        made_by="",
    )
    # ((2 - 1) / 2, -1) -> (0.5, -0.75 by the limit) -> (0.5, 0) by the rectifier
    found = policy.act({"x": np.array([2.0, -1.0], np.float32)})
    assert found.tolist() == [0.5 * 0.5 + 0.125]
    # (4.5, 9) -> the limit twice
    assert policy.act({"x": np.array([10.0, 9.0])}).tolist() == [0.75 * 0.75 + 0.125]
    squashed = replace(policy, output="tanh", low=np.zeros(1, np.float32))
    expected = 0.5 * (np.tanh(0.375) + 1.0)
    assert squashed.act({"x": np.array([2.0, -1.0])}) == pytest.approx([expected], abs=1e-7)
    moves = np.array([[0.125], [-0.5], [0.5]], np.float32)
    rows = np.array([[1.0, 0.5, 0.0], [0.0, 0.0, 1.0]], np.float32)
    biases = (np.zeros(2, np.float32), np.array([0.0, 0.1, 0.55], np.float32))
    chosen = replace(
        policy, output="argmax", moves=moves, weights=(policy.weights[0], rows), biases=biases
    )
    # Outputs (0.75, 0.475, 0.55) add 0.125; outputs (0, 0.1, 0.55) add 0.5, cut off at 1.
    for x, action in (([2.5, 0.0], 0.875), ([1.0, -1.0], 1.0)):
        assert chosen.act({"x": np.array(x), "last_action": np.array([0.75])}).tolist() == [action]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_many_observations_get_the_bits_of_one(activation: str, output: str) -> None:
    policy, many = make_policy(activation, output), observations(33)
    together = policy.act(many)
    assert together.shape == (33, 2)
    assert together.dtype == np.float32
    for index in range(33):
        alone = policy.act({name: value[index] for name, value in many.items()})
        assert alone in policy.action_space
        np.testing.assert_array_equal(alone, together[index])
    assert len(np.unique(together, axis=0)) > 20


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_saved_policy_acts_the_same_bit_for_bit(tmp_path: Path, output: str) -> None:
    policy = make_policy("relu", output)
    loaded = load_policy(save_policy(policy, tmp_path / "new").parent)
    for folder in (tmp_path / "named", str(tmp_path / "named")):
        save_policy(policy, folder)
        agent: Any = agent_class("policy")(box_problem(policy.action_space), policy=folder)
        assert all(map(np.array_equal, agent.policy.weights, policy.weights))
    np.testing.assert_array_equal(loaded.act(observations(50)), policy.act(observations(50)))
    assert loaded.action_space == policy.action_space
    assert (loaded.made_by, loaded.origin) == (policy.made_by, policy.origin)


def test_loading_needs_numpy_and_gymnasium_alone(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    policy = make_policy()
    save_policy(policy, tmp_path)
    code = f"""
import sys
from pathlib import Path
import numpy as np
from fedhpo_gym.agents.policy import load_policy
policy = load_policy(Path({str(tmp_path)!r}))
print(policy.act({{"a": np.ones(3), "b": np.ones((2, 2))}}).tolist())
heavy = {{"torch", "stable_baselines3"}}
print(heavy & set(sys.modules))
"""
    expected = policy.act({"a": np.ones(3), "b": np.ones((2, 2))}).tolist()
    assert run_python(code).splitlines() == [str(expected), "set()"]


def test_a_missing_policy_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="there is no policy"):
        load_policy(tmp_path)


def test_another_environments_observation_is_refused() -> None:
    policy = make_policy()
    with pytest.raises(InvalidArgumentError, match=r"must have 'b', got \['a'\]"):
        policy.act({"a": np.ones(3)})
    with pytest.raises(InvalidArgumentError, match=r"\['a'\]` must have shape \(\.\.\., \(3,\)\)"):
        policy.act({"a": np.ones(4), "b": np.ones((2, 2))})


def test_only_policies_are_saved(tmp_path: Path) -> None:
    policy, file = make_policy(), tmp_path / "new"
    for wrong, words in (
        ((Training(policy, np.zeros(1)), file), "got a Training: give its `policy`"),
        ((str(file), policy), "`policy` must be a Policy, got a str"),
        ((policy, policy), "`folder` must be"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            save_policy(*wrong)
    assert not file.exists()
