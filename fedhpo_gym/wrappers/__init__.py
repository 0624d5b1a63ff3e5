"""What a user composes: one behaviour per file."""

from fedhpo_gym.wrappers.budget_termination import BudgetTermination
from fedhpo_gym.wrappers.incumbent_reward import IncumbentReward
from fedhpo_gym.wrappers.named_action import NamedAction
from fedhpo_gym.wrappers.raw_backend import RawBackend
from fedhpo_gym.wrappers.regret_info import RegretInfo
from fedhpo_gym.wrappers.scalarize_penalty import ScalarizePenalty
from fedhpo_gym.wrappers.surrogate_backend import SurrogateBackend
from fedhpo_gym.wrappers.tabular_backend import TabularBackend

__all__ = [
    "BudgetTermination",
    "IncumbentReward",
    "NamedAction",
    "RawBackend",
    "RegretInfo",
    "ScalarizePenalty",
    "SurrogateBackend",
    "TabularBackend",
]
