"""The problem that an agent solves: one record, read from an environment's public interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium as gym

from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.typed import explained_types, shown

Process: TypeAlias = Literal["trial", "round"]
SCALAR = ("reward",)
"""Objectives of an environment whose reward is one number."""
NOTHING_FREE = SearchSpace(())
"""Fidelities where all are fixed."""


@dataclass(frozen=True)
class SearchProblem:
    """What an agent is to solve, and from which seed. Every agent is made from one.

    Attributes:
        action_space: what actions lie in; for environments of this package a Box in [-1, 1] of
            (n,), or of (clients, n) where every client has its own row.
        search_space: what the n coordinates of an action, or of a row of it, mean.
        fidelities: those dimensions of `search_space` that are fidelities and were left free.
        seed: non-negative integer; the only source of an agent's randomness.
        objectives: names of the entries of the reward; `SCALAR` where it is one number.
        constrained: whether `info["violation"]` says how far a trial is from keeping limits.
        process: what a step is: a whole trial, or some rounds of one course.

    Raises:
        InvalidArgumentError: the seed is negative or no integer.
    """

    action_space: gym.Space[Any]
    search_space: SearchSpace
    fidelities: SearchSpace = NOTHING_FREE
    seed: int = 0
    objectives: tuple[str, ...] = SCALAR
    process: Process = "trial"
    constrained: bool = False

    def __post_init__(self) -> None:
        seed = as_integer(self.seed)
        if seed is None or seed < 0:
            raise InvalidArgumentError(
                f"`seed` must be a non-negative integer, got {shown(self.seed)}."
            )
        object.__setattr__(self, "seed", seed)


@explained_types
def read_problem(env: gym.Env[Any, Any], seed: int) -> SearchProblem:
    """Return what an agent has to solve in an environment; the environment is not reset.

    Reads `action_space`, `search_space` and, where they are, `fidelity_space`, `vector_reward`,
    `reward_space`, `describe`, `constraints` and `step_kind`.

    Args:
        env: wrappers may hide any of these attributes behind their own.
        seed: of the agent.

    Raises:
        InvalidArgumentError: `env` is no environment, has no search space, or the seed is negative.
    """
    if not isinstance(env, gym.Env):
        raise InvalidArgumentError(
            f"`env` must be an environment, as `gymnasium.make` returns it, got {shown(env)}."
        )
    space = _attribute(env, "search_space", None)
    if not isinstance(space, SearchSpace):
        raise InvalidArgumentError(
            f"`env` must have a `search_space` that says what its actions mean, got {env}; use an "
            "environment of this package, or make the agent's class with a SearchProblem."
        )
    fidelities = _attribute(env, "fidelity_space", ())
    return SearchProblem(
        action_space=env.action_space,
        search_space=space,
        fidelities=SearchSpace(tuple(d for d in space.dimensions if d.name in fidelities)),
        seed=seed,
        objectives=_objectives(env),
        process=_attribute(env, "step_kind", "trial"),
        constrained=bool(_attribute(env, "constraints", None)),
    )


def _objectives(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    # A bare environment with bounds for a vector returns one, unless a wrapper says otherwise.
    bounds = _attribute(env, "reward_space", None)
    if not _attribute(env, "vector_reward", bounds is not None):
        return SCALAR
    return tuple(_attribute(env, "describe", dict)()["objective_names"])


def _attribute(env: gym.Env[Any, Any], name: str, default: Any) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
