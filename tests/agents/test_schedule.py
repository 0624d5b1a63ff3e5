"""Schedules do what their formulas say, in the action coordinates of the space."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import agent_class, make_agent, run_episode
from fedhpo_gym.agents.schedule import KINDS, Schedule
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.testing import AnalyticRounds
from problems import box_problem

SPACE = SearchSpace(
    (Dimension("step_size", 1, 4, "int"), Dimension("learning_rate", 1e-4, 1.0, "float", log=True))
)
CONFIGURATION = {"step_size": 3, "learning_rate": 0.1}


def rates(kind: str, done: list[float], initial: float = 0.1) -> list[float]:
    schedule = Schedule(SPACE, {**CONFIGURATION, "learning_rate": initial}, kind)
    shown = {"remaining_rounds": 1.0 - np.array(done, np.float32)[:, None]}
    decoded = [SPACE.decode(action) for action in schedule.act(shown)]
    assert {one["step_size"] for one in decoded} == {3}
    return [float(one["learning_rate"]) for one in decoded]


def test_the_learning_rate_follows_the_formula() -> None:
    done = [0.0, 0.3, 0.5, 0.75, 0.9]
    assert rates("static", done) == pytest.approx([0.1] * 5, rel=1e-5)
    cosine = [0.05 * (1 + math.cos(math.pi * at)) for at in done]
    assert rates("cosine", done) == pytest.approx(cosine, rel=1e-5)
    assert rates("step", done) == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.001], rel=1e-5)


@pytest.mark.parametrize("kind", ["cosine", "step"])
def test_it_ends_at_the_edge_of_the_range(kind: str) -> None:
    assert rates(kind, [0.99], initial=2e-4) == pytest.approx([1e-4], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_many_observations_get_the_bits_of_one(kind: str) -> None:
    schedule = Schedule(SPACE, CONFIGURATION, kind)
    many = {"remaining_rounds": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3, 1)}
    together = schedule.act(many)
    assert (together.shape, together.dtype) == ((2, 3, 2), np.float32)
    for index in np.ndindex(2, 3):
        alone = schedule.act({"remaining_rounds": many["remaining_rounds"][index]})
        np.testing.assert_array_equal(alone, together[index])


def test_it_is_an_agent() -> None:
    schedule = Schedule(SPACE, CONFIGURATION, "cosine")
    kind = agent_class("policy")
    agent = kind(box_problem(gym.spaces.Box(-1.0, 1.0, (2,))), policy=schedule)
    shown = {"remaining_rounds": np.ones(1, np.float32)}
    np.testing.assert_array_equal(agent.ask(shown), schedule.act(shown))
    with pytest.raises(InvalidArgumentError, match=r"`policy` must act in Box.*got Schedule for"):
        kind(box_problem(gym.spaces.Box(-1.0, 1.0, (1,))), policy=schedule)


def test_by_name_it_starts_in_the_middle_and_lets_the_learning_rate_fall() -> None:
    env = AnalyticRounds(horizon=4)
    steps = list(run_episode(env, make_agent("schedule", env, 0), 0))
    played = [env.search_space.decode(step.action) for step in steps]
    assert {(one["step_size"], one["batch_size"]) for one in played} == {(3, 32)}
    falling = [0.01 * 0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    assert [one["learning_rate"] for one in played] == pytest.approx(falling, rel=1e-4)
    chosen = {"learning_rate": 0.5, "step_size": 1, "batch_size": 64}
    agent = make_agent("schedule", env, 0, configuration=chosen, kind="static")
    assert env.search_space.decode(agent.ask(env.reset(seed=0)[0])) == pytest.approx(chosen)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"schedule 'cosin'.*'cosine'"):
        Schedule(SPACE, CONFIGURATION, "cosin")
    with pytest.raises(UnknownNameError, match="dimension 'rate'"):
        Schedule(SPACE, CONFIGURATION, "step", "rate")
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        Schedule(SPACE, {**CONFIGURATION, "learning_rate": 2.0})
    with pytest.raises(InvalidArgumentError, match=r"'remaining_rounds'.*FedHPO-DAC"):
        Schedule(SPACE, CONFIGURATION).act({"elapsed_time": np.zeros(1)})
