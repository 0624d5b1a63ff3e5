"""The wrappers that a record may ask for: none writes a file or calls what a record names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import WrapperSpec

from fedhpo_gym import wrappers as ours
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import as_typed, parameter_types, shown

Types = Mapping[str, Any]

_FOREIGN: Final[tuple[tuple[Callable[..., Any], Types], ...]] = (
    (gym.wrappers.TimeLimit, {"max_episode_steps": int}),
    (gym.wrappers.OrderEnforcing, {"disable_render_order_enforcing": bool}),
    (gym.wrappers.PassiveEnvChecker, {}),
    (gym.wrappers.RecordEpisodeStatistics, {"buffer_length": int, "stats_key": str}),
    (gym.wrappers.FlattenObservation, {}),
    (gym.wrappers.FilterObservation, {"filter_keys": Sequence[str]}),
    (gym.wrappers.NormalizeObservation, {"epsilon": float}),
    (gym.wrappers.ClipAction, {}),
    (gym.wrappers.RescaleAction, {"min_action": float, "max_action": float}),
    (gym.wrappers.ClipReward, {"min_reward": float | None, "max_reward": float | None}),
    (gym.wrappers.NormalizeReward, {"gamma": float, "epsilon": float}),
)
"""Those of Gymnasium with the types of their arguments: their own signatures are wider."""


def _entry_point(wrapper: Any) -> str:
    return f"{wrapper.__module__}:{wrapper.__name__}"


def _own_types(wrapper: Callable[..., Any]) -> Types:
    return {name: hint for name, hint in parameter_types(wrapper).items() if name != "env"}


ALLOWED: Final[Mapping[str, Callable[[], Types]]] = {
    **{
        _entry_point(getattr(ours, name)): partial(_own_types, getattr(ours, name))
        for name in ours.__all__
        if issubclass(getattr(ours, name), gym.Wrapper)
    },
    **{_entry_point(wrapper): partial(dict, types) for wrapper, types in _FOREIGN},
}
"""Entry point of each wrapper -> what gives its arguments' types."""


def check_wrapper(wrapper: WrapperSpec) -> None:
    """Refuse a wrapper of a record that is not on the list, or has other arguments.

    Raises:
        InvalidArgumentError: see above; the message names the wrapper or the argument.
    """
    known = ALLOWED.get(wrapper.entry_point) if isinstance(wrapper.entry_point, str) else None
    if known is None:
        raise InvalidArgumentError(
            f"`spec` of the record names the wrapper {shown(wrapper.entry_point)}; a record may "
            f"only ask for {', '.join(sorted(name.rpartition(':')[2] for name in ALLOWED))}. "
            "Replay it in Python, with the environment that it was made in"
        )
    types = known()
    if not isinstance(wrapper.kwargs, dict) or set(wrapper.kwargs) - set(types):
        raise InvalidArgumentError(
            f"`spec` of the record must give {wrapper.entry_point} arguments among "
            f"{sorted(types)}, got {shown(wrapper.kwargs)}"
        )
    for name, value in wrapper.kwargs.items():
        as_typed(f"spec: {wrapper.entry_point}: {name}", value, types[name])
