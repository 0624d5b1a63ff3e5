"""Hyperband and BOHB: brackets by hand, what is promoted, and what a model adds."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats

from bowl_clients import BowlClients
from box_problem import box_problem
from fedhpo_gym.agents import agent_class, make_agent, run_episode
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.bohb import BOHB, Density, ModelSettings
from fedhpo_gym.agents.multi_fidelity import Hyperband
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space.dimension import Dimension
from fedhpo_gym.studies.wrapped_fedex import Neighbourhood, row_problem, wrapped_search
from fedhpo_gym.testing import make_env

ROUNDS = Dimension("round", 1, 27, "int")
BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CHOOSE_ROUNDS = ("hyperband", "bohb")
TARGET = np.array([0.3, -0.6])


def made(name: str, seed: int, **options: Any) -> Any:
    """Return an agent for `BOX`."""
    return agent_class(name)(box_problem(BOX, seed, ROUNDS), **options)


def asked(agent: Any, number: int) -> list[tuple[np.ndarray, int, float]]:
    """Return (configuration, rounds, score) of trials; nearer to the target is better."""
    found = []
    for _ in range(number):
        action = agent.ask({})
        assert action in BOX
        assert action.dtype == np.float32
        score = -float(np.abs(action[:2] - TARGET).sum())
        agent.tell(Step(action, score))
        found.append((action[:2], int(ROUNDS.decode(float(action[2]))), score))
    return found


@pytest.mark.parametrize("name", CHOOSE_ROUNDS)
def test_brackets_by_hand(name: str) -> None:
    """27 rounds at the most and 3 at the least: 9 + 3 + 1, then 3 + 1, then 3 configurations."""
    agent = made(name, 0, low=3)
    assert agent.rungs == (3, 9, 27)
    rounds = [rounds for _, rounds, _ in asked(agent, 2 * 20)]
    once = [3] * 9 + [9] * 3 + [27] + [9] * 3 + [27] + [27] * 3
    assert rounds == once * 2
    assert sum(once) == 8 * 27


@pytest.mark.parametrize("name", CHOOSE_ROUNDS)
def test_the_best_third_goes_on(name: str) -> None:
    trials = asked(made(name, 0, low=3), 13)
    first, second, last = trials[:9], trials[9:12], trials[12:]
    for before, after in ((first, second), (second, last)):
        best = sorted(before, key=lambda trial: -trial[2])[: len(after)]
        np.testing.assert_array_equal([t[0] for t in after], [t[0] for t in best])


def test_rungs_end_at_the_top_and_stay_above_the_bottom() -> None:
    def rungs(fidelity: Dimension, **options: Any) -> tuple[Any, ...]:
        return Hyperband(box_problem(BOX, 0, fidelity), **options).rungs

    assert rungs(ROUNDS) == (1, 3, 9, 27)
    assert rungs(ROUNDS, low=2) == (3, 9, 27)
    assert rungs(ROUNDS, low=27) == (27,)
    assert rungs(ROUNDS, high=16, low=1, eta=2) == (1, 2, 4, 8, 16)
    assert rungs(Dimension("round", 0.1, 0.9, "float")) == pytest.approx((0.1, 0.3, 0.9))
    stored = Dimension("round", 1, 27, "int", values=(1, 9, 27))
    assert rungs(stored, low=9) == (9, 27)
    assert rungs(stored) == (1, 9, 27)
    ours = Dimension("round", 1, 250, "int", values=(1, 2, 3, 4, 9, 27, 81, 250))
    assert rungs(ours) == (1, 3, 9, 27, 81, 250)  # 250 / 9 is 28, and no round that can be asked


@pytest.mark.parametrize("name", CHOOSE_ROUNDS)
def test_the_seed_decides_everything(name: str) -> None:
    def trials(seed: int) -> str:
        return str(asked(made(name, seed, low=3), 45))

    assert trials(1) == trials(1)
    assert trials(1) != trials(2)


def test_the_model_looks_where_configurations_were_good() -> None:
    def distance(name: str) -> float:
        late = [
            score
            for seed in range(5)
            for _, rounds, score in asked(made(name, seed, low=3), 100)[60:]
            if rounds == 3
        ]
        return -float(np.mean(late))

    assert distance("bohb") < 0.7 * distance("hyperband")


def test_without_a_model_bohb_is_hyperband() -> None:
    blind = BOHB(box_problem(BOX, 3, ROUNDS), low=3, model=ModelSettings(random_share=1.0))
    prior = Hyperband(box_problem(BOX, 3, ROUNDS), low=3)
    for ours, theirs in zip(asked(blind, 40), asked(prior, 40), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_the_model_is_of_the_highest_rung_that_has_enough() -> None:
    agent = BOHB(box_problem(BOX, 0, ROUNDS), low=3)
    assert agent._densities() is None
    asked(agent, 5)
    assert agent._densities() is None, "a point cannot be good and bad"
    asked(agent, 1)
    low = agent._densities()
    assert low is not None, "two coordinates: three good points and three bad ones are enough"
    everyone = {str(point) for density in low for point in density._points}
    assert everyone == {str(point) for _, point in agent._seen[0]}
    asked(agent, 3 + 3)
    assert len(agent._densities()[0]._points) == 3  # type: ignore[index]
    asked(agent, 20)
    high = {str(point) for _, point in agent._seen[2]} | {str(p) for _, p in agent._seen[1]}
    assert {str(point) for point in agent._densities()[0]._points} <= high  # type: ignore[index]


def test_a_density_is_a_mean_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    points, where = rng.uniform(-1, 1, (6, 2)), rng.uniform(-1, 1, (4, 2))
    widths = 1.06 * points.std(axis=0) * 6 ** (-1 / 6)
    expected = [
        np.log(np.mean([stats.norm(p, widths).pdf(place).prod() for p in points]))
        for place in where
    ]
    found = Density(points).log(where)
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], atol=1e-12)


def test_candidates_are_near_the_good_points_and_inside_the_box() -> None:
    density = Density(np.tile([0.99, -0.5], (4, 1)))
    drawn = density.draw(2000, 3.0, np.random.default_rng(0))
    assert np.abs(drawn).max() <= 1.0
    assert np.abs(drawn - [0.99, -0.5]).max() < 0.04
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 401)] * 2), axis=-1).reshape(-1, 2)
    middle = Density(np.random.default_rng(1).uniform(-0.2, 0.2, (20, 2)))
    # The mass of a density of the unit cube, whose cells have an area of 1 / 400^2.
    assert np.exp(middle.log(grid)).sum() / 400**2 == pytest.approx(1.0, abs=1e-3)
    far = density.log(np.array([[0.99, -0.5], [-0.99, 0.5]]))
    assert np.isfinite(far).all()
    assert far[0] > far[1]


@pytest.mark.parametrize("name", CHOOSE_ROUNDS)
def test_it_chooses_the_rounds_of_trials(name: str) -> None:
    env = make_env(budget_trials=16, fidelity={"client_sample_rate": 1.0})
    agent = make_agent(name, env, 0, low=3, high=27)
    steps = list(run_episode(env, agent, 0))
    assert [s.info["fidelity"]["round"] for s in steps] == [3] * 9 + [9] * 3 + [27] + [9] * 3


@pytest.mark.parametrize("name", CHOOSE_ROUNDS)
def test_it_chooses_how_long_wrapped_courses_are(name: str) -> None:
    env = BowlClients(np.tile([0.5, -0.25], (8, 1)), sampled=4, steps=27)
    plain, wrapped = (
        list(
            islice(
                wrapped_search(
                    env,
                    agent_class(name)(row_problem(env, 0, ROUNDS), low=3),
                    0,
                    Neighbourhood(arms=arms),
                    steps=ROUNDS,
                ),
                20,
            )
        )
        for arms in (1, 27)
    )
    assert [len(trial.steps) for trial in plain] == [len(trial.steps) for trial in wrapped]
    assert sum(len(trial.steps) for trial in plain) == 8 * 27
    assert all(len(trial.traces.after) == len(trial.steps) for trial in wrapped)
    np.testing.assert_array_equal(plain[0].centre, wrapped[0].centre)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eta": 1}, "`eta`"),
        ({"eta": 2.5}, "`eta`"),
        ({"low": 9, "high": 3}, "`low`"),
        ({"low": 0}, "low"),
        ({"high": 99}, "high"),
    ],
    ids=str,
)
def test_impossible_ladders_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Hyperband(box_problem(BOX, 0, ROUNDS), **options)


def test_other_spaces_and_rewards_are_refused() -> None:
    for box in (gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(0, 1, (3,))):
        with pytest.raises(InvalidArgumentError, match="`action_space`"):
            Hyperband(box_problem(box, 0, ROUNDS))
    agent = Hyperband(box_problem(BOX, 0, ROUNDS))
    with pytest.raises(InvalidArgumentError, match="follow `ask`"):
        agent.tell(Step(np.zeros(3, np.float32), 0.0))
    action = agent.ask({})
    with pytest.raises(InvalidArgumentError, match="one number"):
        agent.tell(Step(action, np.zeros(2)))
    with pytest.raises(InvalidArgumentError, match="`random_share`"):
        ModelSettings(random_share=2.0)
    with pytest.raises(InvalidArgumentError, match="`candidates`"):
        ModelSettings(candidates=0)
