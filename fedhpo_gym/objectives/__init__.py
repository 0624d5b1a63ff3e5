"""What is good: objectives as data, and the registry of the named ones."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.objectives.base import LARGEST, Objective
from fedhpo_gym.objectives.fairness import (
    FAIRNESS,
    FAIRNESS_NAMES,
    WORST_FAIRNESS,
    client_fairness,
    fairness_objective,
    fairness_vector,
)
from fedhpo_gym.objectives.performance import (
    MAX_LOSS,
    PERFORMANCE,
    performance,
    performance_objective,
    performances,
)
from fedhpo_gym.objectives.privacy import (
    CAP,
    NO_PRIVACY,
    ORDERS,
    PRIVACY_NAMES,
    PrivacyLedger,
    PrivacyLedgers,
    epsilon_from_renyi,
    gaussian_ledger,
    renyi_gaussian,
)
from fedhpo_gym.objectives.spending import PRIVACY, privacy_objective
from fedhpo_gym.objectives.transforms import TRANSFORMS

OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {objective.name: objective for objective in (*PERFORMANCE, *FAIRNESS, *PRIVACY)}
)
"""Every named objective; read-only."""


def get_objective(name: str) -> Objective:
    """Return the objective of this name.

    Raises:
        UnknownNameError: There is none; the message lists the nearest names.
    """
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


__all__ = [
    "CAP",
    "FAIRNESS_NAMES",
    "LARGEST",
    "MAX_LOSS",
    "NO_PRIVACY",
    "OBJECTIVES",
    "ORDERS",
    "PRIVACY_NAMES",
    "TRANSFORMS",
    "WORST_FAIRNESS",
    "Objective",
    "PrivacyLedger",
    "PrivacyLedgers",
    "client_fairness",
    "epsilon_from_renyi",
    "fairness_objective",
    "fairness_vector",
    "gaussian_ledger",
    "get_objective",
    "performance",
    "performance_objective",
    "performances",
    "privacy_objective",
    "renyi_gaussian",
]
