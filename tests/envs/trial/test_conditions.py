"""Environments whose space has conditions: what is not active changes nothing anybody sees."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401
from fedhpo_gym.agents import make_agent
from fedhpo_gym.agents.base import Step
from fedhpo_gym.wrappers import NamedAction

pytestmark = pytest.mark.raw

ID = "FedHPO-LR-BreastCancer-v1"
ARGUMENTS: dict[str, Any] = {
    "backend": "raw",
    "algorithm": "serveropt",
    "fidelity": {"round": 2, "client_sample_rate": 1.0},
}
NONE, ADAM = -0.9, 0.3
"""Coordinates of the server optimizers."""


@pytest.mark.parametrize("grid", [False, True])
def test_actions_that_mean_the_same_are_answered_alike(grid: bool) -> None:
    env = gym.make(ID, **ARGUMENTS, grid=grid)
    space = env.get_wrapper_attr("search_space")
    kind, rate, tau = (
        space.names.index(f"{n}")
        for n in ("server_optimizer", "server_learning_rate", "adaptivity")
    )
    seen = []
    for inactive in (-0.5, 0.7):
        env.reset(seed=1)
        steps = []
        for server in (NONE, ADAM, NONE):
            action = np.zeros(len(space), dtype=np.float32)
            action[kind] = server
            if server == NONE:
                action[[rate, tau]] = inactive
            steps.append(env.step(action))
        seen.append(steps)
    for one, other in zip(*seen, strict=True):
        assert one[1:4] == other[1:4]
        assert str(one[4]) == str(other[4])
        for name, value in one[0].items():
            np.testing.assert_array_equal(value, other[0][name])
    configuration = seen[0][0][4]["configuration"]
    assert configuration["server_optimizer"] == "none"
    assert "server_learning_rate" not in configuration
    assert seen[0][1][4]["configuration"]["server_optimizer"] in ("sgd", "adam", "yogi")


def test_named_actions_leave_out_what_is_not_active() -> None:
    env = NamedAction(gym.make(ID, **ARGUMENTS))
    env.reset(seed=1)
    env.action_space.seed(3)
    drawn = [env.action_space.sample() for _ in range(20)]
    assert {"server_learning_rate" in one for one in drawn} == {True, False}
    for one in drawn:
        assert one in env.action_space
        flat = gym.spaces.utils.flatten(env.action_space, one)
        assert flat.shape == (len(env.action_space.spaces),)
        back = gym.spaces.utils.unflatten(env.action_space, flat)
        assert env.get_wrapper_attr("search_space").validate(back) == {
            name: one[name] for name in back if name in one
        }
    *_, info = env.step(next(one for one in drawn if one["server_optimizer"] == "none"))
    assert "adaptivity" not in info["configuration"]


@pytest.mark.parametrize(
    "name", ["random", "optuna-tpe", "bo-gp", "bo-rf", "de", "cma-es", "bo-kde"]
)
def test_optimizers_search_trees(name: str) -> None:
    env = gym.make(ID, **ARGUMENTS)
    agent = make_agent(name, env, 0)
    observation, _ = env.reset(seed=0)
    for _ in range(6):
        action = agent.ask(observation)
        observation, reward, terminated, _, info = env.step(action)
        agent.tell(
            Step(action, float(reward), terminated=terminated, info=info, observation=observation)
        )
