"""Incumbents over simulated time, from run records and from tables of others."""

from fedhpo_gym.analysis.trajectories.foreign import read_table
from fedhpo_gym.analysis.trajectories.grid import Study, time_grid
from fedhpo_gym.analysis.trajectories.rules import RULES, Trials, incumbents
from fedhpo_gym.analysis.trajectories.runs import trials_of_run
from fedhpo_gym.analysis.trajectories.trajectory import Trajectory

__all__ = [
    "RULES",
    "Study",
    "Trajectory",
    "Trials",
    "incumbents",
    "read_table",
    "time_grid",
    "trials_of_run",
]
