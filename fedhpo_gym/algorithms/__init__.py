"""FL algorithms: each class says all of one, what may be set, what travels, and what it does.

Hooks are arithmetic that numpy and torch both know; no file here needs either torch or numba.
"""

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.algorithms.asynchronous import FedAsync, FedBuff
from fedhpo_gym.algorithms.base import Algorithm
from fedhpo_gym.algorithms.dpfedavg import DPFedAvg
from fedhpo_gym.algorithms.fedavg import Ditto, FedAvg, FedBN, FedProx, Local
from fedhpo_gym.algorithms.fedopt import FedNova, FedOpt
from fedhpo_gym.algorithms.nbafl import NbAFL
from fedhpo_gym.algorithms.scaffold import Scaffold
from fedhpo_gym.algorithms.serveropt import FedAdam, FedYogi, ServerOpt
from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import require_known

_KINDS: tuple[type[Algorithm], ...] = (
    FedAvg,
    FedOpt,
    FedProx,
    NbAFL,
    FedAdam,
    FedYogi,
    FedBN,
    Ditto,
    Local,
    FedAsync,
    FedBuff,
    ServerOpt,
    FedNova,
    DPFedAvg,
    Scaffold,
)

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({kind.name: kind() for kind in _KINDS})


@checked_types
def get_algorithm(name: str) -> Algorithm:
    """Return an algorithm by name.

    Raises:
        UnknownNameError: no such algorithm.
    """
    require_known("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "get_algorithm"]
