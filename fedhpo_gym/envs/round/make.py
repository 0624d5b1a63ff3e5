"""The entry point of the ids of round environments."""

from __future__ import annotations

from typing import Any, Final

from fedhpo_gym.envs.arguments import check_own, from_names, taking
from fedhpo_gym.envs.round.arguments import RoundArguments
from fedhpo_gym.envs.round.env import RoundEnv

OF_FORM: Final = ("vector_reward", "render_mode")
"""Arguments that say what an environment looks like, not what it is about."""


@taking(RoundArguments)
def make_round_env(
    *, vector_reward: bool = False, render_mode: str | None = None, **arguments: Any
) -> RoundEnv:
    """Build a round environment; the entry point of every `FedHPO-DAC-*` id.

    Args:
        vector_reward: return reward vectors.
        render_mode: "human", "rgb_array" or None.
        arguments: see `RoundArguments`.

    Raises:
        InvalidArgumentError: an argument is unknown or out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the data set is not on this machine; says what to do.
        MissingDependencyError: torch is not installed.
    """
    check_own(make_round_env, {"vector_reward": vector_reward, "render_mode": render_mode})
    process, fingerprint = from_names(RoundArguments, arguments, OF_FORM).open()
    return RoundEnv(process, fingerprint, vector_reward=vector_reward, render_mode=render_mode)
