"""The decision processes. Entry points of ids are the names here: run records hold them.

What is named here is imported when somebody asks: an id needs the modules of its kind.
"""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.envs.meta.env import (
        make_generated_env,
        make_generated_vector_env,
        make_pool_env,
        make_pool_vector_env,
    )
    from fedhpo_gym.envs.round.arguments import make_round_env, make_round_vector_env
    from fedhpo_gym.envs.trial.arguments import make_trial_env, make_trial_vector_env
    from fedhpo_gym.envs.trial.env import TrialEnv

__getattr__ = lazy_names(
    __name__,
    {
        "meta.env": (
            "make_generated_env, make_generated_vector_env, make_pool_env, make_pool_vector_env"
        ),
        "round.arguments": "make_round_env, make_round_vector_env",
        "trial.arguments": "make_trial_env, make_trial_vector_env",
        "trial.env": "TrialEnv",
    },
)

__all__ = [
    "TrialEnv",
    "make_generated_env",
    "make_generated_vector_env",
    "make_pool_env",
    "make_pool_vector_env",
    "make_round_env",
    "make_round_vector_env",
    "make_trial_env",
    "make_trial_vector_env",
]
