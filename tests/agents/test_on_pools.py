"""Agents on a pool: no configuration is trained twice at one fidelity, and promotions keep it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.base import read_problem

POOL: dict[str, Any] = {
    "id": "FedHPO-JointPrivate-ExamLondon-v1",
    "tune": {"epsilon": [1, 16]},
    "reward": "score",
}
FULL = {"round": 10, "client_sample_rate": 1.0}


def key(configuration: dict[str, Any]) -> str:
    return json.dumps(configuration, sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optuna-tpe", "de", "bo-kde", "cma-es"])
def test_no_configuration_is_asked_twice_at_one_fidelity(name: str) -> None:
    env = gym.make(**POOL, fidelity=FULL, budget_trials=60)
    agent = make_agent(name, env, seed=0)
    steps = list(run_episode(env, agent, seed=0))
    assert len({key(step.info["configuration"]) for step in steps}) == len(steps) == 60
    decode = env.get_wrapper_attr("setup").decode
    for step in steps:  # what the agent learns from is what was trained
        assert decode(step.action)[0] == step.info["configuration"]
        np.testing.assert_array_equal(
            env.get_wrapper_attr("search_space").encode(step.info["configuration"]), step.action
        )


def test_without_a_pool_suggestions_stay_as_they_are() -> None:
    env = gym.make("FedHPO-LR-CreditG-v1", fidelity={"round": 9, "client_sample_rate": 1.0})
    assert read_problem(env, 0).pool is None
    assert env.get_wrapper_attr("pool") is None
    assert read_problem(gym.make(**POOL, fidelity=FULL), 0).pool is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hyperband", "asha"])
def test_a_promoted_configuration_is_the_one_that_was_tried_below(name: str) -> None:
    env = gym.make(**POOL, fidelity={"client_sample_rate": 1.0}, budget_trials=60)
    agent = make_agent(name, env, seed=1)
    rounds: dict[str, list[int]] = defaultdict(list)
    for step in run_episode(env, agent, seed=1):
        rounds[key(step.info["configuration"])].append(step.info["fidelity"]["round"])
    assert all(len({*own}) == len(own) for own in rounds.values()), "twice at one fidelity"
    lowest = min(min(own) for own in rounds.values())
    climbed = [own for own in rounds.values() if len(own) > 1]
    # A later bracket may begin where an earlier one has ended, so not all of them rise.
    assert sum(own[0] == lowest and own == sorted(own) for own in climbed) >= 5


@pytest.mark.slow
def test_when_all_were_tried_they_come_again() -> None:
    env = gym.make(**POOL, fidelity=FULL, seed=2, budget_trials=100)
    size = len(env.get_wrapper_attr("pool"))
    agent = make_agent("de", env, seed=0)
    steps = list(run_episode(env, agent, seed=0))
    assert len({key(step.info["configuration"]) for step in steps}) == size < 100


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_with_the_same_configurations() -> None:
    env = gym.make(**POOL, fidelity=FULL, budget_trials=20)
    whole = [s.action for s in run_episode(env, make_agent("de", env, seed=3), seed=3)]
    first = make_agent("de", env, seed=3)
    env.reset(seed=3)
    for step in run_episode(env, first, seed=3):
        if step.info["trial"] == 10:
            break
    again = make_agent("de", env, seed=3)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    np.testing.assert_array_equal(again.ask({}), whole[10])


def test_a_suggestion_that_was_moved_aside_is_promoted_to_where_it_went() -> None:
    env = gym.make(**POOL, fidelity={"client_sample_rate": 1.0})
    agent = make_agent("hyperband", env, seed=0)
    first = agent.ask({})
    near = first.copy()
    near[0] *= np.float32(0.999)  # of the same nearest configuration
    moved = agent._to_pool(near)
    assert not np.array_equal(moved[:-1], first[:-1])
    agent._record_asked(moved)
    near[-1] = 1.0  # the coordinate of the round
    np.testing.assert_array_equal(agent._to_pool(near)[:-1], moved[:-1])
