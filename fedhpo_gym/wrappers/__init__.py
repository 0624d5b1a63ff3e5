"""Wrappers for users to compose. Records of runs name a wrapper by this package and its class."""

from fedhpo_gym.wrappers.actions import NamedAction
from fedhpo_gym.wrappers.backends import (
    FederatedScopeBackend,
    RawBackend,
    SurrogateBackend,
    TabularBackend,
)
from fedhpo_gym.wrappers.budget import BudgetTermination
from fedhpo_gym.wrappers.rewards import IncumbentReward, RegretInfo, ScalarizePenalty
from fedhpo_gym.wrappers.scalarization import (
    Achievement,
    Chebyshev,
    EpsilonConstraint,
    HypervolumeImprovement,
    VectorScalarization,
    WeightedSum,
)

__all__ = [
    "Achievement",
    "BudgetTermination",
    "Chebyshev",
    "EpsilonConstraint",
    "FederatedScopeBackend",
    "HypervolumeImprovement",
    "IncumbentReward",
    "NamedAction",
    "RawBackend",
    "RegretInfo",
    "ScalarizePenalty",
    "SurrogateBackend",
    "TabularBackend",
    "VectorScalarization",
    "WeightedSum",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
