"""What an agent is made from, and what it is told when it cannot act in an environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import make_agent, read_problem
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.space import Dimension
from fedhpo_gym.studies.wrapped_fedex import row_problem
from fedhpo_gym.testing import AnalyticRounds, make_env
from fedhpo_gym.wrappers import NamedAction


def trials(**arguments: Any) -> gym.Env[Any, Any]:
    return make_env(budget_trials=5, **arguments)


def test_a_problem_is_read_from_a_trial_environment() -> None:
    env = trials(fidelity={"client_sample_rate": 0.4})
    problem = read_problem(env, 7)
    assert problem.action_space == env.action_space
    assert problem.search_space == env.get_wrapper_attr("search_space")
    assert problem.fidelities.names == ("round",)
    assert problem.fidelities["round"] == env.get_wrapper_attr("fidelity_space")["round"]
    assert (problem.seed, problem.objectives, problem.process) == (7, ("reward",), "trial")
    assert read_problem(trials(), 0).fidelities.names == ("round", "client_sample_rate")
    fixed = trials(fidelity={"round": 81, "client_sample_rate": 1.0})
    assert read_problem(fixed, 0).fidelities.names == ()
    with pytest.raises(FrozenInstanceError):
        problem.seed = 3  # type: ignore[misc]


def test_on_a_grid_only_stored_fidelities_are_offered() -> None:
    found = read_problem(trials(grid=True, fidelity={"client_sample_rate": 1.0}), 0)
    values = found.fidelities["round"].values
    assert values is not None
    assert len(values) == 20


def test_vectors_have_names_and_numbers_have_one() -> None:
    assert read_problem(trials(vector_reward=True), 0).objectives == (
        "val_loss",
        "fairness_std",
        "epsilon",
    )
    assert read_problem(AnalyticRounds(vector_reward=True), 0).objectives == ("improvement", "time")
    assert read_problem(AnalyticRounds(), 0).objectives == ("reward",)


def test_rounds_are_told_from_trials() -> None:
    for per_client in (False, True):
        problem = read_problem(AnalyticRounds(per_client=per_client), 0)
        assert problem.process == "round"
        assert len(problem.search_space) == problem.action_space.shape[-1]  # type: ignore[index]


def test_around_fedex_a_course_is_a_trial_and_its_length_a_fidelity() -> None:
    env = AnalyticRounds(per_client=True)
    plain = row_problem(env, 3)
    assert (plain.seed, plain.process, plain.fidelities.names) == (3, "trial", ())
    assert plain.action_space.shape == (len(env.search_space),)
    longer = row_problem(env, 3, Dimension("round", 1, 8, "int"))
    assert longer.search_space.names == (*env.search_space.names, "round")
    assert longer.fidelities.names == ("round",)
    assert longer.action_space.shape == (len(env.search_space) + 1,)


def test_reading_a_problem_does_not_touch_the_episode() -> None:
    env = trials()
    env.reset(seed=0)
    env.step(np.zeros(6, np.float32))
    make_agent("random", env, 0)
    assert env.step(np.zeros(6, np.float32))[4]["trial"] == 2


NO_ROUND = {"round": 81, "client_sample_rate": 1.0}
RATE = {"client_sample_rate": 1.0}
REFUSED: list[tuple[str, Any, str]] = [
    ("bohb", lambda: trials(), r"with fidelity={'client_sample_rate': 1.0}"),
    ("hyperband", lambda: trials(fidelity=NO_ROUND), "without 'round' in its `fidelity`"),
    ("bohb", lambda: AnalyticRounds(), "acts in trial environments, `FedHPO-<Model>-<Dataset>`"),
    ("bohb", lambda: trials(fidelity=RATE, vector_reward=True), "without `MO-`"),
    ("optuna-tpe", lambda: AnalyticRounds(vector_reward=True), "without `MO-`"),
    ("policy", lambda: trials(), "`policy` must be a policy or the folder of a saved one"),
    ("fedex", lambda: trials(), "acts in round environments, .*made with per_client=True"),
    ("fts", lambda: AnalyticRounds(), "make the environment with per_client=True"),
    ("random", lambda: AnalyticRounds(per_client=True), "make the environment without per_client"),
    ("random", lambda: NamedAction(trials()), "without wrappers that replace its actions"),
    ("schedule", lambda: trials(), "acts in round environments"),
    ("fedtune", lambda: trials(), "acts in round environments"),
    ("random", lambda: trials().action_space, "`env` must be an environment"),
    ("random", lambda: gym.make("CartPole-v1"), "`env` must have a `search_space`"),
]


@pytest.mark.parametrize(("name", "make", "words"), REFUSED)
def test_an_agent_says_in_one_sentence_where_it_can_act(name: str, make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as raised:
        make_agent(name, make(), 0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`seed` must be a non-negative integer"):
        make_agent("fedtune", AnalyticRounds(), seed)


def test_an_option_is_named_with_its_neighbour() -> None:
    with pytest.raises(FedHPOError, match=r"'schedule' takes no argument 'kinds'.*'kind'"):
        make_agent("schedule", AnalyticRounds(), 0, kinds="static")
