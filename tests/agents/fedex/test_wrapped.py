"""Any optimizer around FedEx: what it is told, and that one arm is the optimizer alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import Agent, SearchProblem, Step, agent_class
from fedhpo_gym.agents.fedex import FedExSettings
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.wrapped_fedex import (
    NOTHING_LEARNED,
    Neighbourhood,
    WrappedTrial,
    row_problem,
    row_space,
    wrapped_search,
)
from problems import BowlClients, box_problem


def bowls(steps: int = 25) -> BowlClients:
    return BowlClients(np.tile([0.5, -0.25], (8, 1)), sampled=4, steps=steps)


def trials(name: str, number: int, seed: int = 0, **options: Any) -> list[WrappedTrial]:
    env = bowls()
    outer = agent_class(name)(row_problem(env, seed))
    settings = FedExSettings(gamma=1.0)
    search = wrapped_search(env, outer, seed, Neighbourhood(settings=settings, **options))
    return list(islice(search, number))


def test_one_arm_is_the_optimizer_alone() -> None:
    for trial in trials("random", 3, arms=1):
        assert trial.arms.sizes == (1,)
        assert len(trial.steps) == len(trial.traces.after) == 25
        assert all((step.action == trial.centre).all() for step in trial.steps)
        loss = ((trial.centre - np.array([0.5, -0.25])) ** 2).sum() + 0.1
        assert trial.score == pytest.approx(-loss, rel=1e-5)
        np.testing.assert_array_equal(trial.best, trial.centre)


def test_wrapping_gets_equal_training_and_improves_on_the_centre() -> None:
    plain, wrapped = (trials("random", 6, arms=arms, epsilon=0.3) for arms in (1, 27))
    for before, after in zip(plain, wrapped, strict=True):
        np.testing.assert_array_equal(after.centre, before.centre)
        np.testing.assert_array_equal(after.arms.factors[0][0], after.centre)
        assert len(after.steps) == len(before.steps)
        assert after.score > before.score


def test_the_optimizer_learns_from_what_it_is_told() -> None:
    wrapped = trials("optuna-tpe", 30, arms=3)
    distances = [np.abs(trial.centre - [0.5, -0.25]).sum() for trial in wrapped]
    assert np.mean(distances[-8:]) < 0.7 * np.mean(distances[:10])


def test_the_seed_decides_everything() -> None:
    def scores(seed: int) -> list[float]:
        return [trial.score for trial in trials("random", 2, seed)]

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)


def test_grids_of_the_space_are_kept() -> None:
    env = bowls()
    space = SearchSpace(
        (
            Dimension("step_size", 0.01, 1.0, "float", log=True),
            Dimension("batch_size", 16, 64, "int", values=(16, 32, 64)),
        )
    )
    outer = agent_class("random")(row_problem(env, 0))
    trial = next(wrapped_search(env, outer, 0, space=space))
    cells = {round(float(x), 6) for x in trial.arms.factors[0][1:, 1]}
    assert cells <= {round(space["batch_size"].encode(v), 6) for v in (16, 32, 64)}


class Listener(Agent):
    """Asks for the centre and keeps what it is told."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.told: list[float] = []

    def ask(self, observation: Any) -> np.ndarray:
        return np.zeros(2, np.float32)

    def tell(self, step: Step) -> None:
        self.told.append(step.reward)


def test_every_neighbourhood_is_drawn_anew_and_explored_anew() -> None:
    env = bowls()
    listener = Listener(row_problem(env, 0))
    first, second = islice(wrapped_search(env, listener, 0), 2)
    assert not np.array_equal(first.arms.factors[0][1:], second.arms.factors[0][1:])
    still = Neighbourhood(epsilon=0.0)
    first, second = islice(wrapped_search(env, listener, 0, still), 2)
    np.testing.assert_array_equal(first.arms.factors[0], second.arms.factors[0])
    assert first.traces.mle != second.traces.mle


class Mute(BowlClients):
    """No client has validation data."""

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        return (*outcome, {**info, "num_val_samples": np.zeros(len(self.optima))})


def test_a_course_nobody_reports_on_gets_the_worst_score() -> None:
    env = Mute(np.zeros((3, 2)), sampled=2, steps=4)
    listener = Listener(row_problem(env, 0))
    trial = next(wrapped_search(env, listener, 0))
    assert listener.told == [NOTHING_LEARNED] == [trial.score]


def test_other_spaces_are_refused() -> None:
    env = bowls()
    with pytest.raises(InvalidArgumentError, match="per_client=True"):
        row_space(gym.spaces.Box(-1, 1, (2,)))
    outer = agent_class("random")(box_problem(gym.spaces.Box(-1, 1, (3,))))
    with pytest.raises(InvalidArgumentError, match="`outer` must act in"):
        next(wrapped_search(env, outer, 0))
