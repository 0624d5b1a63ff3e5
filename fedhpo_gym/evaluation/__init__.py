"""What an evaluation says: frozen records, nothing aggregated."""

from fedhpo_gym.evaluation.best import best_rounds
from fedhpo_gym.evaluation.records import (
    METRICS,
    SPLITS,
    Cost,
    Evaluation,
    Evaluations,
    Fidelity,
    Metric,
    Split,
)

__all__ = [
    "METRICS",
    "SPLITS",
    "Cost",
    "Evaluation",
    "Evaluations",
    "Fidelity",
    "Metric",
    "Split",
    "best_rounds",
]
