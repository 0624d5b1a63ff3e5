"""What an evaluation costs on the simulated clock."""

from fedhpo_gym.systems.model import CROSS_DEVICE, CROSS_SILO, SystemModel, harmonic

__all__ = ["CROSS_DEVICE", "CROSS_SILO", "SystemModel", "harmonic"]
