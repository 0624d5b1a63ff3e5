"""Search spaces, and the only codec between actions and configurations."""

from fedhpo_gym.space.dimension import ACTION_SLACK, Dimension, Value
from fedhpo_gym.space.space import INACTIVE, SearchSpace

__all__ = ["ACTION_SLACK", "INACTIVE", "Dimension", "SearchSpace", "Value"]
