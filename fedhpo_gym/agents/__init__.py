"""Optimizers, in a file per family; they see only what any user of an environment sees.

To add one, write its class and add one line to `AGENTS`; the file is imported when the agent is
first made, so that its libraries stay optional. Its class declares what it needs and can do. Custom
agents need no line: wherever a caller names an agent, `module:Class` is a name, too, and so are
names registered with `register_agent`.

Population-based training (`fedhpo_gym.studies.population`) is no agent: it needs several courses.
"""

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import gymnasium as gym

from fedhpo_gym.agents.base import Agent, SearchProblem, Step, read_problem, run_crew, run_episode
from fedhpo_gym.core.checks import coerce_arguments, validate_call, validate_failed_call
from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.core.plugins import Registry, import_named, require_subclass

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
        "learned-lstm": "fedhpo_gym.agents.learned_lstm:LearnedLSTM",
        "learned-transformer": "fedhpo_gym.agents.learned_transformer:LearnedTransformer",
        "gp": "fedhpo_gym.agents.transfer.gaussian_process:GaussianProcessSearch",
        "rgpe": "fedhpo_gym.agents.transfer.ensembles:RankingEnsemble",
        "tst-r": "fedhpo_gym.agents.transfer.ensembles:TwoStageSearch",
        "taf-r": "fedhpo_gym.agents.transfer.ensembles:TransferAcquisition",
        "cts": "fedhpo_gym.agents.transfer.cts:CopulaSearch",
        "zero-shot": "fedhpo_gym.agents.transfer.ensembles:ZeroShotSearch",
        "bounding-box": "fedhpo_gym.agents.transfer.ensembles:BoundingBoxSearch",
        "ablr": "fedhpo_gym.agents.transfer.ablr:AdaptiveRegressionSearch",
        "fsbo": "fedhpo_gym.agents.transfer.fsbo:DeepKernelSearch",
        "pfn": "fedhpo_gym.agents.transfer.pfn:PriorFittedSearch",
    }
)
"""Name of each agent -> where it is, as `module:Class`."""


@validate_call
def agent_class(name: str) -> type[Agent]:
    """Import the class of an agent: a key of `AGENTS`, or one's own.

    One's own is a name that was registered, or `module:Class`. The module is run: pass only names
    that a caller chose, never one out of a file.

    Raises:
        UnknownNameError: no such agent.
        MissingDependencyError: the library it is made of is not installed.
        InvalidArgumentError: `module:Class` cannot be imported, or is no agent.
    """
    if name in AGENTS:
        module, _, attribute = AGENTS[name].partition(":")
        kind: type[Agent] = getattr(importlib.import_module(module), attribute)
        return kind
    if name in REGISTERED:
        return REGISTERED[name]
    if ":" not in name:
        raise unknown_name("agent", name, [*AGENTS, *REGISTERED])
    return _checked_class(name, import_named("agent", "a class of agents", name))


def _checked_class(name: str, kind: Any) -> type[Agent]:
    require_subclass("agent", name, kind, Agent, "ask")
    return cast("type[Agent]", kind)


REGISTERED: Registry[type[Agent]] = Registry("agent", lambda: AGENTS)
"""Classes of agents that users have added, by name."""


@validate_call
def register_agent(name: str, kind: type[Agent]) -> None:
    """Add a class of agents of your own by a name that commands and studies take.

    Worker processes import the module that calls this; so it stands in a module, not in a prompt.

    Raises:
        InvalidArgumentError: this package has an agent of that name, or it is no agent.
    """
    _checked_class(name, kind)
    REGISTERED.add(name, lambda: kind)


@validate_call
def agent_name(agent: str | type[Agent]) -> str:
    """Return the name by which other processes find a class of agents; names stay as they are.

    Raises:
        InvalidArgumentError: the class cannot be imported by its module.
    """
    if isinstance(agent, str):
        return agent
    path = f"{agent.__module__}:{agent.__qualname__}"
    importable = getattr(sys.modules.get(agent.__module__), agent.__qualname__, None)
    if importable is not agent or agent.__module__ == "__main__":
        raise InvalidArgumentError(
            "`agents` must be classes that worker processes can import by their `__module__`, got "
            f"{path}; write it at the top of a file of its own, and import it from there"
        )
    return next((name for name, stored_path in AGENTS.items() if stored_path == path), path)


@validate_failed_call
def make_agent(
    name: str, env: gym.Env[Any, Any], seed: int, *, shared_start: int = 0, **options: Any
) -> Agent:
    """Make an agent by name for an environment, which is not reset.

    Args:
        name: key of `AGENTS`, one that was registered, or `module:Class` of one's own.
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
        read_problem(env, seed, shared_start, transfers=kind.transfers),
        **coerce_arguments(f"Agent {name!r}", kind, options, ["problem"]),
    )


__all__ = [
    "AGENTS",
    "REGISTERED",
    "Agent",
    "SearchProblem",
    "Step",
    "agent_class",
    "agent_name",
    "make_agent",
    "read_problem",
    "register_agent",
    "run_crew",
    "run_episode",
]
