"""Every registered agent obeys the laws of all that its class says it can do."""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import AGENTS, agent_class, read_problem
from fedhpo_gym.agents.learned_network import LearnedNetwork, save_network
from fedhpo_gym.agents.policy import Policy, save_policy
from fedhpo_gym.core.errors import MissingDependencyError
from fedhpo_gym.testing.agent import (
    OTHER_PROCESS,
    AgentConformance,
    MultiFidelityAgentConformance,
    agent_laws,
)
from fedhpo_gym.testing.rollout import in_another_process


class WithPolicy(AgentConformance):
    """Gives a learned agent a policy of random weights."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def options(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        shown: Any = env.observation_space
        box: Any = env.action_space
        entries = {name: one.shape for name, one in shown.spaces.items()}
        inputs = sum(math.prod(shape) for shape in entries.values())
        weights = np.random.default_rng(0).normal(size=(inputs, *box.shape)).astype(np.float32)
        policy = Policy(
            entries=entries,
            low=box.low,
            high=box.high,
            weights=(weights / inputs,),
            biases=(np.zeros(box.shape, np.float32),),
            activation="tanh",
            output="tanh",
            mean=np.zeros(inputs),
            deviation=np.ones(inputs),
            limit=3.0,
            made_by="",
        )
        save_policy(policy, self.folder)
        return {"policy": str(self.folder)}


HEAVY = {"bo-gp", "parego", "qlognehvi"}
"""Agents whose libraries take long to load, or whose suggestions take long."""
DECISIVE = {**dict.fromkeys(HEAVY, 12), "bo-rf": 14}
SEED = 5


class Quick(AgentConformance):
    """Asks one other process for all agents at once, and of ladders for few rungs."""

    def options(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        return {"low": 50} if agent_class(self.name).fidelity else super().options(env)

    def elsewhere(self, seed: int) -> list[Any]:
        assert seed == SEED
        return _all_elsewhere(self.name in HEAVY)[self.law_class, self.name]


class WithConfigurations(Quick):
    """Gives an agent configurations that were good elsewhere."""

    def options(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        space = read_problem(env, 0).search_space
        return {"configurations": [space.decode(np.full(len(space), u)) for u in (0.5, -0.5)]}


class WithNetwork(AgentConformance):
    """Gives a learned agent a network of random weights."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def options(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        space = read_problem(env, 0).search_space
        module = sys.modules[agent_class(self.name).__module__]
        shapes_of = getattr(module, f"{self.name.removeprefix('learned-')}_shapes")
        features = space.features(np.zeros((1, len(space)))).shape[1]
        sizes = {"features": features, "width": 8, "dimensions": len(space), "units": 8}
        sizes |= {"heads": 2, "layers": 1}
        shapes, rng = shapes_of(sizes), np.random.default_rng(0)
        arrays = {name: rng.normal(size=one).astype(np.float32) for name, one in shapes.items()}
        network = LearnedNetwork(self.name, space, sizes, arrays, "")
        return {"policy": str(save_network(network, self.folder, self.name))}


LEARNED: dict[str, type[AgentConformance]] = {
    "policy": WithPolicy,
    "proxy": WithConfigurations,
    "learned-lstm": WithNetwork,
    "learned-transformer": WithNetwork,
}
"""What to give to agents that need something learned."""


@cache
def _all_elsewhere(heavy: bool) -> dict[tuple[str, str], Any]:
    wanted: list[tuple[str, str, dict[str, Any], int]] = []
    for kind in (k for names in JOINED.values() for k in names):
        laws = globals()[kind]
        if issubclass(laws, Quick) and (laws.name in HEAVY) == heavy:
            options: dict[str, Any] = laws().options(laws().env())
            wanted.append((laws.law_class, laws.name, options, SEED))
    found = in_another_process(OTHER_PROCESS, wanted)
    return {(law, name): one for (law, name, _, _), one in zip(wanted, found, strict=True)}


def _laws(name: str) -> tuple[type[AgentConformance], ...]:
    try:
        return agent_laws(name)
    except MissingDependencyError:
        return ()


JOINED: dict[str, list[str]] = {name: [] for name in AGENTS}
for _name in AGENTS:
    for _law in _laws(_name):
        _class = f"Test_{_name}_{_law.__name__}".replace("-", "_")
        _given = LEARNED.get(_name, Quick)
        _own: dict[str, Any] = {"name": _name, "__module__": __name__}
        if _name in DECISIVE or _law is MultiFidelityAgentConformance:
            _own["decisive"] = DECISIVE.get(_name, 40)
        _made = type(_class, (_given, _law), _own)
        globals()[_class] = pytest.mark.slow(_made) if _name in HEAVY else _made
        JOINED[_name].append(_class)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_in_a_class(name: str) -> None:
    try:
        agent_class(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    assert JOINED[name], f"{name!r} acts on nothing; say what in `acts_on`"


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_in_the_table(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert any(f"`{name}`" in row for row in rows)
