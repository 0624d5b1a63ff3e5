"""From a data set to the clients of a federation: partitions, and what one seed makes of them."""

from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.federations.partitions import get_partition

__all__ = ["Federation", "get_partition"]
