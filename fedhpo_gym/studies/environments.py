"""Environments by id or by recorded spec; nothing in a record can choose what code runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from fedhpo_gym.errors import FedHPOError, InvalidArgumentError, unknown_name
from fedhpo_gym.objectives import Objective
from fedhpo_gym.studies.own import with_own
from fedhpo_gym.studies.trust import trusted
from fedhpo_gym.studies.wrappers import check_wrapper
from fedhpo_gym.typed import as_arguments, as_typed, shown

_ID = re.compile(r"^(MO-)?FedHPO-")
_VERSION = re.compile(r"-v(\d+)$")
_FORMER_ENTRY_POINTS = {
    "fedhpo_gym.envs.registration:make_trial_env": "fedhpo_gym.envs:make_trial_env",
    "fedhpo_gym.envs.round_registration:make_round_env": "fedhpo_gym.envs:make_round_env",
}
"""What records of version 0.1.0 name, before entry points had names of their own."""
IDENTIFYING = ("task", "version", "vector_reward")
"""Arguments that say which problem an id stands for: only the id decides them."""


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
        InvalidArgumentError: the environment does not take these arguments; see `as_settable`.
    """
    return gym.make(env_id, disable_env_checker=True, **as_settable(env_id, kwargs))


def as_settable(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of an environment as the types that its entry point says.

    Raises:
        InvalidArgumentError: there is no such argument, it has another type, or it would make
            another problem of the id.
    """
    entry_point = gym.spec(env_id).entry_point
    maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if maker is None:
        raise InvalidArgumentError(f"`env_id` must have an entry point, and {env_id!r} has none")
    for name in IDENTIFYING:
        if name in kwargs:
            raise InvalidArgumentError(
                f"`{name}` cannot be set, got {shown(kwargs[name])}: it is what {env_id} stands "
                "for; use the id of the problem that you mean"
            )
    return as_arguments(env_id, maker, kwargs, (*IDENTIFYING, "render_mode"))


def remake_environment(
    env_id: str,
    spec: Mapping[str, Any],
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> gym.Env[Any, Any]:
    """Make the environment of a record again.

    Args:
        env_id: what the record names.
        spec: its spec.
        own: objectives of the user's own that it was made with, by name.
        named: programs and files that the user names, see `fedhpo_gym.studies.trust`.

    Raises:
        UnknownNameError: no environment has this id.
        InvalidArgumentError: the spec is damaged, or names code that is not this package's, or a
            program or file that the user does not name.
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
    decided = {name: registered.kwargs[name] for name in IDENTIFYING if name in registered.kwargs}
    kept = {name: value for name, value in wanted.kwargs.items() if name not in IDENTIFYING}
    wanted.kwargs = with_own({**trusted(kept, named), **decided}, own or {})
    _check_options(wanted)
    for wrapper in wanted.additional_wrappers:
        check_wrapper(wrapper)
    try:
        return gym.make(wanted)
    except FedHPOError:
        raise
    except (ValueError, TypeError, AssertionError, gym.error.Error) as error:
        raise InvalidArgumentError(
            f"`spec` of the record cannot be made into {env_id}: {error}"
        ) from error


def _check_options(wanted: EnvSpec) -> None:
    """Refuse options of Gymnasium that are of another type than it says."""
    if "render_mode" in wanted.kwargs:
        as_typed("spec: render_mode", wanted.kwargs["render_mode"], None)
    as_typed("spec: order_enforce", wanted.order_enforce, bool)
    as_typed("spec: disable_env_checker", wanted.disable_env_checker, bool)
    limit = as_typed("spec: max_episode_steps", wanted.max_episode_steps, int | None)
    if limit is not None and limit < 1:
        raise InvalidArgumentError(f"`spec: max_episode_steps` must be positive, got {limit}")


def _version(env_id: str) -> int:
    found = _VERSION.search(env_id)
    return int(found[1]) if found else -1
