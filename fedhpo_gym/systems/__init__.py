"""What an evaluation costs on the simulated clock."""

from fedhpo_gym.systems.model import (
    COMPUTE_RULES,
    CROSS_DEVICE,
    CROSS_SILO,
    NEEDS_SAMPLES,
    SystemModel,
    harmonic,
)
from fedhpo_gym.systems.work import Work

__all__ = [
    "COMPUTE_RULES",
    "CROSS_DEVICE",
    "CROSS_SILO",
    "NEEDS_SAMPLES",
    "SystemModel",
    "Work",
    "harmonic",
]
