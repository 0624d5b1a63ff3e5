"""Agents stay in their space and say where they can act; schedules follow their formulas."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray
from wrapped_fedex import row_problem

from fake_study import FakeEnv
from fedhpo_gym.agents import (
    Agent,
    SearchProblem,
    agent_class,
    make_agent,
    read_problem,
    run_episode,
)
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.schedule import KINDS, Schedule
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDependencyError,
    UnknownNameError,
)
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.testing import AnalyticRounds, make_env
from fedhpo_gym.wrappers import NamedAction
from problems import box_problem

BOX = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32))
OBSERVATION: dict[str, NDArray[Any]] = {}


def actions(name: str, seed: int, steps: int = 15) -> NDArray[np.float32]:
    """Let an agent act on a bowl; return what it did."""
    agent = agent_class(name)(box_problem(BOX, seed))
    done = []
    for _ in range(steps):
        action = agent.ask(OBSERVATION)
        agent.tell(Step(action, -float(((action - 0.5) ** 2).sum()), observation=OBSERVATION))
        done.append(action)
    return np.array(done)


def test_random_search_uses_the_bounds_of_the_box() -> None:
    done = actions("random", seed=0)
    assert all(BOX.contains(action) for action in done)
    assert done[:, 1].max() > 1.0, "the bounds of the second coordinate were not used"


@pytest.mark.slow
def test_optuna_keeps_its_log_level_and_stays_silent(run_python: Callable[..., str]) -> None:
    # In a new process, because tests that ran before may have left another level behind.
    code = """
import logging, sys
sys.path += ["tests/support", "tests/agents", "docs/studies"]
import optuna, test_agents
said = []
optuna.logging.disable_default_handler()
handler = logging.Handler()
handler.emit = said.append
logging.getLogger("optuna").addHandler(handler)
optuna.logging.set_verbosity(optuna.logging.INFO)
test_agents.actions("optuna-tpe", seed=0)
print(len(said), optuna.logging.get_verbosity() == optuna.logging.INFO)
"""
    assert run_python(code).split() == ["0", "True"]


def test_an_unknown_agent_is_named_with_its_neighbour() -> None:
    with pytest.raises(UnknownNameError, match=r"agent 'optuna'.*'optuna-tpe'"):
        make_agent("optuna", FakeEnv(), 0)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "fedhpo_gym.agents.optuna_agents", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[agents\]'"):
        agent_class("optuna-tpe")(box_problem(BOX))


class Recorder(Agent):
    """Does nothing, and keeps what it was told."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.told: list[Step] = []
        self.seen: list[float] = []

    def ask(self, observation: Any) -> NDArray[np.float32]:
        self.seen.append(float(observation["left"][0]))
        return np.full(2, len(self.seen) / 10, dtype=np.float32)

    def tell(self, step: Step) -> None:
        self.told.append(step)


def test_the_loop_gives_every_step_to_agent_and_caller() -> None:
    env = FakeEnv(budget_s=1600.0)  # a trial takes 550 s
    agent = Recorder(read_problem(env, 0))
    steps = list(run_episode(env, agent, seed=5))
    assert [step.terminated for step in steps] == [False, False, True]
    assert [step.info["trial"] for step in steps] == [1, 2, 3]
    assert agent.seen == pytest.approx([1.0, 1 - 550 / 1600, 1 - 1100 / 1600])
    assert all(step is told for step, told in zip(steps, agent.told, strict=True))
    assert [step.observation["left"][0] for step in steps[:-1]] == agent.seen[1:]
    again = list(run_episode(env, Recorder(read_problem(env, 0)), seed=5))
    assert [step.info for step in again] == [step.info for step in steps]
    other = list(run_episode(env, Recorder(read_problem(env, 0)), seed=6))
    assert [step.info for step in other] != [step.info for step in steps]


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
    share = Dimension("client_sample_rate", 0.1, 1.0, "float")
    space = SearchSpace((*SPACE.dimensions, share))
    schedule = Schedule(space, {**CONFIGURATION, share.name: 1.0}, kind)
    many = {"remaining_rounds": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3, 1)}
    together = schedule.act(many)
    assert (together.shape, together.dtype) == ((2, 3, 3), np.float32)
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
