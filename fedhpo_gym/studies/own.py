"""Objectives of a user's own in records, which hold no functions: what they are is said instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.typed import shown

_LISTS = ("objectives", "rewards")
"""Arguments that may hold objectives: of trial environments, and of round environments."""
OWN = "own_objective"
"""Entry that tells what stands for an objective from other mappings."""


def spec_of(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the spec of an environment as plain JSON; of functions, only what they are called."""
    if env.spec is None:
        return {}
    kwargs = dict(env.spec.kwargs)
    for name in _LISTS:
        if kwargs.get(name) is not None:
            kwargs[name] = [_described(one) for one in kwargs[name]]
    found: dict[str, Any] = json.loads(replace(env.spec, kwargs=kwargs).to_json())
    return found


def with_own(kwargs: Mapping[str, Any], own: Mapping[str, Objective]) -> dict[str, Any]:
    """Return recorded arguments with the user's objectives in the place of what stands for them.

    Args:
        kwargs: arguments of `gymnasium.make`, from a record.
        own: the objectives, by name.

    Raises:
        InvalidArgumentError: one is missing, or is another than the record says.
    """
    lists = {name: kwargs[name] for name in _LISTS if isinstance(kwargs.get(name), list | tuple)}
    found = {name: [_found(one, own) for one in named] for name, named in lists.items()}
    return {**kwargs, **found}


def _described(objective: str | Objective) -> str | dict[str, Any]:
    if isinstance(objective, str):
        return objective
    return {
        OWN: objective.name,
        "unit": objective.unit,
        "minimize": objective.minimize,
        "bounds": list(objective.bounds),
    }


def _found(entry: Any, own: Mapping[str, Objective]) -> Any:
    if not isinstance(entry, Mapping) or OWN not in entry:
        return entry
    name = entry[OWN]
    if name not in own:
        raise InvalidArgumentError(
            f"`own` must hold the objective {shown(name)}: the record was made with a function of "
            "the user's own, which no record holds, and cannot be replayed without it; use "
            "`replay(record, own={name: objective})`"
        )
    if _described(own[name]) != entry:
        raise InvalidArgumentError(
            f"`own` must hold the objective {shown(name)} as the record says it, "
            f"{shown(dict(entry))}, got {shown(_described(own[name]))}"
        )
    return own[name]
