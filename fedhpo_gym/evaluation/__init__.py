"""What an evaluation says: frozen records, nothing aggregated."""

from fedhpo_gym.evaluation.records import (
    METRICS,
    SPLITS,
    Cost,
    Evaluation,
    Evaluations,
    Fidelity,
    Metric,
    Split,
    best_rounds,
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
