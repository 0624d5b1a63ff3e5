"""Agents are seeded, stay in their space, and the loop gives them every step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

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
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError, UnknownNameError
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


def test_optuna_keeps_its_log_level_and_stays_silent(run_python: Callable[..., str]) -> None:
    # In a new process, because tests that ran before may have left another level behind.
    code = """
import logging, sys
sys.path += ["tests/support", "tests/agents"]
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


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(3), gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(0, 1, (2, 2))],
    ids=str,
)
def test_other_action_spaces_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="`action_space` must be a bounded Box"):
        agent_class("random")(box_problem(space))


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
