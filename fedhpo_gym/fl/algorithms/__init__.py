"""FL algorithms: each file says what the algorithm adds to a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.fl.algorithms.base import Algorithm
from fedhpo_gym.fl.algorithms.fedavg import FedAvg
from fedhpo_gym.fl.algorithms.fedopt import FedOpt

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({"fedavg": FedAvg(), "fedopt": FedOpt()})


def get_algorithm(name: str) -> Algorithm:
    """Return an algorithm by name.

    Raises:
        UnknownNameError: no such algorithm.
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedOpt", "get_algorithm"]
