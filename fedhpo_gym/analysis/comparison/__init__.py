"""Agents compared over problems: what the report says first."""

from fedhpo_gym.analysis.comparison.answer import answer, shown_p, verdict
from fedhpo_gym.analysis.comparison.compare import REGRET, VALIDATION, VOLUME, Comparison, compare
from fedhpo_gym.analysis.comparison.tables import comparison_tables

__all__ = [
    "REGRET",
    "VALIDATION",
    "VOLUME",
    "Comparison",
    "answer",
    "compare",
    "comparison_tables",
    "shown_p",
    "verdict",
]
