"""Environments by id or by recorded spec; nothing in a record can choose what code runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from fedhpo_gym.errors import InvalidArgumentError, unknown_name

_ID = re.compile(r"^(MO-)?FedHPO-")
_VERSION = re.compile(r"-v(\d+)$")
_FORMER_ENTRY_POINTS = {
    "fedhpo_gym.envs.registration:make_trial_env": "fedhpo_gym.envs:make_trial_env",
    "fedhpo_gym.envs.round_registration:make_round_env": "fedhpo_gym.envs:make_round_env",
}
"""What records of version 0.1.0 name, before entry points had names of their own."""
_TRUSTED_WRAPPERS = ("fedhpo_gym.wrappers.", "gymnasium.wrappers.")


def known_ids() -> tuple[str, ...]:
    """Return the registered ids of this package."""
    return tuple(sorted(name for name in gym.registry if _ID.match(name)))


def resolve_id(name: str) -> str:
    """Return the full id of a name that may lack its version: the newest one is meant.

    Raises:
        UnknownNameError: no environment has this id.
    """
    if name in gym.registry:
        return name
    versions = [known for known in known_ids() if _VERSION.sub("", known) == name]
    if not versions:
        raise unknown_name("environment id", name, known_ids())
    return max(versions, key=_version)


def make_environment(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make an environment for a recorded run, without Gymnasium's checks of every step.

    Raises:
        InvalidArgumentError: the environment does not take these arguments.
    """
    try:
        return gym.make(env_id, disable_env_checker=True, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{env_id} cannot be made with the arguments {dict(kwargs)}: {error}"
        ) from error


def remake_environment(env_id: str, spec: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make the environment of a record again.

    Raises:
        UnknownNameError: no environment has this id.
        InvalidArgumentError: the spec is damaged, or names code that is not this package's.
    """
    if env_id not in gym.registry:
        raise unknown_name("environment id", env_id, known_ids())
    try:
        wanted = EnvSpec.from_json(json.dumps(spec))
    except (ValueError, TypeError, KeyError, gym.error.Error) as error:
        raise InvalidArgumentError(f"`spec` of the record is no EnvSpec: {error}") from error
    registered = gym.spec(env_id)
    wanted.entry_point = _FORMER_ENTRY_POINTS.get(str(wanted.entry_point), wanted.entry_point)
    # A spec names what is imported and called: a foreign record could name anything.
    if (wanted.id, wanted.entry_point) != (env_id, registered.entry_point):
        raise InvalidArgumentError(
            f"`spec` of the record must be one of {env_id} (entry point {registered.entry_point}), "
            f"got {wanted.id} (entry point {wanted.entry_point})"
        )
    # Records of version 0.1.0 name a task without its version; an id has exactly one.
    if "task" in registered.kwargs:
        wanted.kwargs["task"] = registered.kwargs["task"]
    for wrapper in wanted.additional_wrappers:
        if not str(wrapper.entry_point).startswith(_TRUSTED_WRAPPERS):
            raise InvalidArgumentError(
                f"`spec` of the record names the wrapper {wrapper.entry_point!r}; only wrappers of "
                f"{' and '.join(_TRUSTED_WRAPPERS)}* are replayed"
            )
    return gym.make(wanted)


def _version(env_id: str) -> int:
    found = _VERSION.search(env_id)
    return int(found[1]) if found else -1
