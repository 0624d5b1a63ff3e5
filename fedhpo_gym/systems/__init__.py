"""What an evaluation costs on the simulated clock."""

from fedhpo_gym.systems.asynchronous import JobClock
from fedhpo_gym.systems.base import COMPUTE_RULES, NEEDS_SAMPLES, System
from fedhpo_gym.systems.calibration import Calibration, calibrate
from fedhpo_gym.systems.choice import SYSTEM_MODELS, changed_system
from fedhpo_gym.systems.device_model import DeviceModel
from fedhpo_gym.systems.model import CROSS_DEVICE, CROSS_SILO, SystemModel, harmonic
from fedhpo_gym.systems.recorded import RecordedModel, RoundRecord, read_records
from fedhpo_gym.systems.work import ClientWork, Happened, Work

__all__ = [
    "COMPUTE_RULES",
    "CROSS_DEVICE",
    "CROSS_SILO",
    "NEEDS_SAMPLES",
    "SYSTEM_MODELS",
    "Calibration",
    "ClientWork",
    "DeviceModel",
    "Happened",
    "JobClock",
    "RecordedModel",
    "RoundRecord",
    "System",
    "SystemModel",
    "Work",
    "calibrate",
    "changed_system",
    "harmonic",
    "read_records",
]
