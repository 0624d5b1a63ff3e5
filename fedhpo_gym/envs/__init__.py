"""The decision processes, and their registration with Gymnasium."""

from fedhpo_gym.envs.trial import TrialEnv

__all__ = ["TrialEnv"]
