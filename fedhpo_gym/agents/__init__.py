"""Optimizers, one per file; they see what any user of an environment sees.

To add one, write its file and add one line to `AGENTS`; the file is imported when the agent is
first made, so that its libraries stay optional.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from fedhpo_gym.agents.base import Agent
from fedhpo_gym.agents.loop import Step, run_episode
from fedhpo_gym.errors import unknown_name

AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "random": "fedhpo_gym.agents.random_search:RandomSearch",
        "optuna-tpe": "fedhpo_gym.agents.optuna_tpe:OptunaTPE",
    }
)
"""Name of each agent -> where it is, as `module:Class`."""

CLIENT_AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "fedex": "fedhpo_gym.agents.fedex.agent:FedEx",
        "fedex-personalised": "fedhpo_gym.agents.fedex.personalised:PersonalisedFedEx",
        "fts": "fedhpo_gym.agents.fts.agent:FTS",
    }
)
"""The same for agents that act for every client, in environments made with `per_client=True`."""

MULTI_FIDELITY_AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "hyperband": "fedhpo_gym.agents.hyperband:Hyperband",
        "bohb": "fedhpo_gym.agents.bohb:BOHB",
    }
)
"""The same for agents that choose one fidelity, the last coordinate of an action, which the option
`fidelity` of `make_agent` describes."""

LEARNED_AGENTS: Mapping[str, str] = MappingProxyType(
    {"policy": "fedhpo_gym.agents.rl.agent:PolicyAgent"}
)
"""The same for agents that need something learned before, as an option of `make_agent`."""


def agent_class(name: str) -> type[Agent]:
    """Import the class of an agent.

    Raises:
        UnknownNameError: no such agent.
        MissingDependencyError: the library it is made of is not installed.
    """
    known = {**AGENTS, **CLIENT_AGENTS, **MULTI_FIDELITY_AGENTS, **LEARNED_AGENTS}
    if name not in known:
        raise unknown_name("agent", name, known)
    module, _, attribute = known[name].partition(":")
    found: type[Agent] = getattr(importlib.import_module(module), attribute)
    return found


def make_agent(name: str, action_space: gym.Space[Any], seed: int, **options: Any) -> Agent:
    """Make an agent by name.

    Args:
        name: key of `AGENTS`, `CLIENT_AGENTS`, `MULTI_FIDELITY_AGENTS` or `LEARNED_AGENTS`.
        action_space: the environment's.
        seed: non-negative integer; equal seeds give equal agents.
        options: further arguments of its class, such as the `policy` of "policy".

    Raises:
        UnknownNameError: no such agent.
        MissingDependencyError: the library it is made of is not installed.
        InvalidArgumentError: the agent cannot act in this space, or the seed is negative.
    """
    return agent_class(name)(action_space, seed, **options)


__all__ = [
    "AGENTS",
    "CLIENT_AGENTS",
    "LEARNED_AGENTS",
    "MULTI_FIDELITY_AGENTS",
    "Agent",
    "Step",
    "agent_class",
    "make_agent",
    "run_episode",
]
