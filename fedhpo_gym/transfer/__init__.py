"""Learning from tasks tuned before: the interface of HPO-B, and sources of meta-data behind it."""

from fedhpo_gym.transfer.handler import HPOBHandler
from fedhpo_gym.transfer.source import MetaSource

__all__ = ["HPOBHandler", "MetaSource"]
