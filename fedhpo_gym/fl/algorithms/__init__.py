"""FL algorithms: each file says what the algorithm adds to a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.fl.algorithms.adaptive import FedAdam, FedYogi
from fedhpo_gym.fl.algorithms.asynchronous import Asynchronous, FedAsync, FedBuff
from fedhpo_gym.fl.algorithms.base import Algorithm, Context, LocalSteps
from fedhpo_gym.fl.algorithms.ditto import Ditto
from fedhpo_gym.fl.algorithms.dpfedavg import DPFedAvg
from fedhpo_gym.fl.algorithms.fedavg import FedAvg
from fedhpo_gym.fl.algorithms.fedbn import FedBN
from fedhpo_gym.fl.algorithms.fednova import FedNova
from fedhpo_gym.fl.algorithms.fedopt import FedOpt
from fedhpo_gym.fl.algorithms.fedprox import FedProx
from fedhpo_gym.fl.algorithms.local import Local
from fedhpo_gym.fl.algorithms.nbafl import NbAFL
from fedhpo_gym.fl.algorithms.scaffold import Scaffold
from fedhpo_gym.fl.algorithms.serveropt import ServerOpt

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


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Asynchronous",
    "Context",
    "DPFedAvg",
    "Ditto",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedBN",
    "FedBuff",
    "FedNova",
    "FedOpt",
    "FedProx",
    "FedYogi",
    "Local",
    "LocalSteps",
    "NbAFL",
    "Scaffold",
    "ServerOpt",
    "get_algorithm",
]
