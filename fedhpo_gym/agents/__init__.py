"""Optimizers, in a file per family; they see what any user of an environment sees.

To add one, write its class and add one line to `AGENTS`; the file is imported when the agent is
first made, so that its libraries stay optional. What an agent needs and can do, its class says.

Population-based training (`fedhpo_gym.studies.population`) and a search around FedEx
(`fedhpo_gym.studies.wrapped_fedex`) are no agents: each needs more than one course.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from fedhpo_gym.agents.base import Agent, SearchProblem, Step, read_problem, run_crew, run_episode
from fedhpo_gym.errors import unknown_name
from fedhpo_gym.typed import as_arguments, as_typed, checked_types, explained_types

AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "random": "fedhpo_gym.agents.black_box:RandomSearch",
        "grid": "fedhpo_gym.agents.black_box:GridSearch",
        "sobol": "fedhpo_gym.agents.spread:SobolSearch",
        "latin-hypercube": "fedhpo_gym.agents.spread:LatinHypercube",
        "de": "fedhpo_gym.agents.black_box:DifferentialEvolution",
        "cma-es": "fedhpo_gym.agents.cma_es:CMAES",
        "bo-gp": "fedhpo_gym.agents.optuna_gp:GaussianProcessSearch",
        "bo-rf": "fedhpo_gym.agents.forest:ForestSearch",
        "bo-kde": "fedhpo_gym.agents.bohb:KernelDensitySearch",
        "optuna-tpe": "fedhpo_gym.agents.optuna_agents:OptunaTPE",
        "tpe-md": "fedhpo_gym.agents.optuna_agents:MedianTPE",
        "tpe-hb": "fedhpo_gym.agents.optuna_agents:HyperbandTPE",
        "successive-halving": "fedhpo_gym.agents.multi_fidelity:SuccessiveHalving",
        "asha": "fedhpo_gym.agents.multi_fidelity:ASHA",
        "hyperband": "fedhpo_gym.agents.multi_fidelity:Hyperband",
        "bohb": "fedhpo_gym.agents.bohb:BOHB",
        "dehb": "fedhpo_gym.agents.multi_fidelity:DEHB",
        "priorband": "fedhpo_gym.agents.bohb:PriorBand",
        "nsga2": "fedhpo_gym.agents.optuna_agents:NSGA2",
        "motpe": "fedhpo_gym.agents.optuna_agents:MOTPE",
        "parego": "fedhpo_gym.agents.botorch_vector:ParEGO",
        "qlognehvi": "fedhpo_gym.agents.botorch_vector:QLogNEHVI",
        "schedule": "fedhpo_gym.agents.schedule:ScheduleAgent",
        "fedtune": "fedhpo_gym.agents.fedtune:FedTune",
        "fedex": "fedhpo_gym.agents.fedex:FedEx",
        "fedex-personalised": "fedhpo_gym.agents.fedex_personalised:PersonalisedFedEx",
        "fts": "fedhpo_gym.agents.fts:FTS",
        "dp-fts-de": "fedhpo_gym.agents.fts:PrivateFTS",
        "flora": "fedhpo_gym.agents.flora:FLoRA",
        "fedpop": "fedhpo_gym.agents.fedpop:FedPop",
        "fedhyper": "fedhpo_gym.agents.fedhyper:FedHyper",
        "auto-fedrl": "fedhpo_gym.agents.auto_fedrl:AutoFedRL",
        "proxy": "fedhpo_gym.agents.proxy:ProxyTuning",
        "policy": "fedhpo_gym.agents.policy:PolicyAgent",
    }
)
"""Name of each agent -> where it is, as `module:Class`."""


@checked_types
def agent_class(name: str) -> type[Agent]:
    """Import the class of an agent; its attributes say what it needs and can do.

    Raises:
        UnknownNameError: no such agent.
        MissingDependencyError: the library it is made of is not installed.
    """
    if as_typed("name", name, str) not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    module, _, attribute = AGENTS[name].partition(":")
    found: type[Agent] = getattr(importlib.import_module(module), attribute)
    return found


@explained_types
def make_agent(
    name: str, env: gym.Env[Any, Any], seed: int, *, shared_start: int = 0, **options: Any
) -> Agent:
    """Make an agent by name for an environment, which is not reset.

    Args:
        name: key of `AGENTS`.
        env: what the agent will act in.
        seed: non-negative integer; equal seeds give equal agents.
        shared_start: configurations that are tried first, the same for all agents of a seed.
        options: settings of its class, such as the `policy` of "policy".

    Raises:
        UnknownNameError: no such agent.
        MissingDependencyError: the library it is made of is not installed.
        InvalidArgumentError: the agent cannot act in this environment, has no such option, or the
            seed is negative.
    """
    kind = agent_class(name)
    return kind(
        read_problem(env, seed, shared_start),
        **as_arguments(f"Agent {name!r}", kind, options, ["problem"]),
    )


__all__ = [
    "AGENTS",
    "Agent",
    "SearchProblem",
    "Step",
    "agent_class",
    "make_agent",
    "read_problem",
    "run_crew",
    "run_episode",
]
