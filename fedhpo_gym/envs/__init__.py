"""The decision processes. Entry points of ids are the names here: run records hold them."""

from fedhpo_gym.envs.round.make import make_round_env
from fedhpo_gym.envs.round.vector import make_round_vector_env
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.make import make_trial_env
from fedhpo_gym.envs.trial.vector import make_trial_vector_env

__all__ = [
    "TrialEnv",
    "make_round_env",
    "make_round_vector_env",
    "make_trial_env",
    "make_trial_vector_env",
]
