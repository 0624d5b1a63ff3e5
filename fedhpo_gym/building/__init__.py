"""Computing a table: every course of a grid, in units that survive a crash."""

from fedhpo_gym.building.build import build_table

__all__ = ["build_table"]
