"""Computing tables and samples: courses of a design, in units that survive a crash."""

from fedhpo_gym.building.build import build_sample, build_table

__all__ = ["build_sample", "build_table"]
