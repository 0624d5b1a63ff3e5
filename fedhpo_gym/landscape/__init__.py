"""What is known of problems whose numbers are stored, and never shown to an agent."""

from fedhpo_gym.landscape.cards import health_on, write_health
from fedhpo_gym.landscape.health import HEALTH, LABELS, health_of, labels_on

__all__ = [
    "HEALTH",
    "LABELS",
    "health_of",
    "health_on",
    "labels_on",
    "write_health",
]
