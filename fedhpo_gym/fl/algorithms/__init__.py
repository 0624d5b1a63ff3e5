"""FL algorithms: each file says what the algorithm adds to a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.fl.algorithms.base import Algorithm, Context
from fedhpo_gym.fl.algorithms.fedavg import FedAvg
from fedhpo_gym.fl.algorithms.fedopt import FedOpt
from fedhpo_gym.fl.algorithms.fedprox import FedProx

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {algorithm.name: algorithm for algorithm in (FedAvg(), FedOpt(), FedProx())}
)


def get_algorithm(name: str) -> Algorithm:
    """Return an algorithm by name.

    Raises:
        UnknownNameError: no such algorithm.
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "Context", "FedAvg", "FedOpt", "FedProx", "get_algorithm"]
