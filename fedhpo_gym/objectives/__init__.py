"""Objectives of evaluations: performance, fairness, privacy and costs, and those of users."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, cast

from fedhpo_gym.core.checks import coerce, validate_call
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.core.plugins import Registry, import_named
from fedhpo_gym.evaluation.records import CLASSIFICATION, MAX_LOSS, SPLITS, MetricSpec
from fedhpo_gym.objectives.base import Objective, values_of
from fedhpo_gym.objectives.performance import (
    BUDGET_S,
    COST_NAMES,
    ENERGY,
    FAIRNESS,
    FAIRNESS_METRIC,
    FAIRNESS_NAMES,
    FLOPS_PER_PARAMETER,
    PRIVACY,
    Costs,
    Spending,
    client_fairness,
    cost_objectives,
    fairness_vector,
    performance_objectives,
    performances,
)
from fedhpo_gym.objectives.privacy import (
    CAP,
    NO_PRIVACY,
    PRIVACY_NAMES,
    SEARCH_ORDERS,
    PrivacyLedger,
    PrivacyLedgers,
    Spent,
    ledger_of,
    planned_noise,
    poisson_curve,
    renyi_curve,
    selected_renyi,
    selection_epsilon,
)


@validate_call
def objectives_of(
    metrics: Sequence[MetricSpec], splits: Sequence[str], budget_s: float = BUDGET_S
) -> tuple[Objective, ...]:
    """Return all objectives of some metrics and splits.

    These are the performance of every metric on every split, fairness if clients have a validation
    accuracy, and privacy and costs, which need no metric.
    """
    is_fair = "val" in splits and any(metric.name == FAIRNESS_METRIC for metric in metrics)
    fairness = FAIRNESS if is_fair else ()
    costs = cost_objectives(budget_s)
    return (*performance_objectives(metrics, splits), *fairness, *PRIVACY, *costs)


OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {objective.name: objective for objective in objectives_of(CLASSIFICATION, SPLITS)}
)
"""All named objectives of the metrics of the engine; read-only. `Problem.objectives` has those of
a problem."""


REGISTERED: Registry[Objective] = Registry("objective", lambda: OBJECTIVES)
"""Objectives that users have added, by name; all problems have them."""


@validate_call
def register_objective(objective: Objective) -> None:
    """Add your own objective, which all environments then accept by its name.

    Raises:
        InvalidArgumentError: this package has an objective of that name.
    """
    REGISTERED.add(objective.name, lambda: objective)


@validate_call
def get_objective(name: str) -> Objective:
    """Return the objective of this name, or the object `module:name`.

    Raises:
        UnknownNameError: There is none; the message lists the nearest names.
        InvalidArgumentError: `module:name` cannot be imported, or is no objective.
    """
    if ":" in name:
        imported = import_named("objectives", "an Objective", name)
        return cast("Objective", coerce(f"objectives: {name}", imported, Objective))
    catalogue = {**OBJECTIVES, **REGISTERED}
    require_known("objective", name, catalogue)
    return catalogue[name]


@validate_call
def named_objective(given: str | Objective) -> str | Objective:
    """Return the object `module:name`, and any other argument unchanged."""
    return get_objective(given) if isinstance(given, str) and ":" in given else given


__all__ = [
    "CAP",
    "COST_NAMES",
    "ENERGY",
    "FAIRNESS_NAMES",
    "FLOPS_PER_PARAMETER",
    "MAX_LOSS",
    "NO_PRIVACY",
    "OBJECTIVES",
    "PRIVACY_NAMES",
    "REGISTERED",
    "SEARCH_ORDERS",
    "Costs",
    "Objective",
    "PrivacyLedger",
    "PrivacyLedgers",
    "Spending",
    "Spent",
    "client_fairness",
    "fairness_vector",
    "get_objective",
    "ledger_of",
    "named_objective",
    "objectives_of",
    "performances",
    "planned_noise",
    "poisson_curve",
    "register_objective",
    "renyi_curve",
    "selected_renyi",
    "selection_epsilon",
    "values_of",
]
