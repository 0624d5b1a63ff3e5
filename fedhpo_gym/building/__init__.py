"""Computing tables and samples: courses of a design, in units that survive a crash."""

from fedhpo_gym.building.build import build_sample, build_table, tell
from fedhpo_gym.building.estimate import Estimate

__all__ = ["Estimate", "build_sample", "build_table", "tell"]
