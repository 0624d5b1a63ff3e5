"""Transfer learning across tasks: the interface of HPO-B, and sources of its meta-data."""

from fedhpo_gym.transfer.handler import HPOBHandler
from fedhpo_gym.transfer.source import MetaSource

__all__ = ["HPOBHandler", "MetaSource"]
