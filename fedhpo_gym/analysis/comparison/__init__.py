"""Agents compared over problems: what the report says first."""

from fedhpo_gym.analysis.comparison.answer import answer, certainty, shown_p, verdict
from fedhpo_gym.analysis.comparison.compare import (
    FINAL,
    REGRET,
    RETURN,
    VALIDATION,
    VOLUME,
    Comparison,
    compare,
)
from fedhpo_gym.analysis.comparison.tables import comparison_tables

__all__ = [
    "FINAL",
    "REGRET",
    "RETURN",
    "VALIDATION",
    "VOLUME",
    "Comparison",
    "answer",
    "certainty",
    "compare",
    "comparison_tables",
    "shown_p",
    "verdict",
]
