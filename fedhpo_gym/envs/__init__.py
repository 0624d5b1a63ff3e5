"""The decision processes. Entry points of ids are the names here: run records hold them."""

from __future__ import annotations

import importlib
from typing import Any, Final

HOMES: Final = {
    "TrialEnv": "fedhpo_gym.envs.trial.env",
    "make_trial_env": "fedhpo_gym.envs.trial.arguments",
    "make_trial_vector_env": "fedhpo_gym.envs.trial.arguments",
    "make_round_env": "fedhpo_gym.envs.round.arguments",
    "make_round_vector_env": "fedhpo_gym.envs.round.arguments",
}
"""Names -> their modules, which are imported when somebody asks: an id needs those of its kind."""


def __getattr__(name: str) -> Any:
    """Return what lies in a module that was not needed before."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


__all__ = list(HOMES)
