"""What a user composes: one behaviour per file."""

from fedhpo_gym.wrappers.achievement import Achievement
from fedhpo_gym.wrappers.budget_termination import BudgetTermination
from fedhpo_gym.wrappers.chebyshev import Chebyshev
from fedhpo_gym.wrappers.epsilon_constraint import EpsilonConstraint
from fedhpo_gym.wrappers.federatedscope_backend import FederatedScopeBackend
from fedhpo_gym.wrappers.hypervolume_improvement import HypervolumeImprovement
from fedhpo_gym.wrappers.incumbent_reward import IncumbentReward
from fedhpo_gym.wrappers.named_action import NamedAction
from fedhpo_gym.wrappers.raw_backend import RawBackend
from fedhpo_gym.wrappers.regret_info import RegretInfo
from fedhpo_gym.wrappers.scalarization import VectorScalarization
from fedhpo_gym.wrappers.scalarize_penalty import ScalarizePenalty
from fedhpo_gym.wrappers.surrogate_backend import SurrogateBackend
from fedhpo_gym.wrappers.tabular_backend import TabularBackend
from fedhpo_gym.wrappers.weighted_sum import WeightedSum

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
