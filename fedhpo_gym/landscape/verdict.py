"""What makes a problem not worth solving, read off its health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_EDGES = 1
"""Hyperparameters whose optimum may lie at an edge of the grid."""
MOST_NOISE = 1.0
"""Spread of seeds, as a share of that of configurations, from which seeds decide."""
INERT = 0.02
"""A hyperparameter with a smaller share of the variance, interactions included, is not worth it."""


def faults(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> list[str]:
    """Return in a few words what makes a problem degenerate; empty where nothing does.

    Args:
        health: what `health_of` returned.
        labels: what the label frequencies reach, if it is known.
    """
    found = []
    if labels is not None and not health["optimum"]["val_loss"] < labels["val_loss"]:
        found.append("optimum loses to the label frequencies")
    if len(health["edges"]) > MOST_EDGES:
        found.append("optimum at more than one edge")
    noise, spread = health["seed_noise"], health["spread"]
    if noise is not None and spread and noise >= MOST_NOISE * spread:
        found.append("seeds differ more than configurations")
    return found


def inert(health: Mapping[str, Any]) -> list[str]:
    """Return the hyperparameters that hardly matter, even in interactions."""
    importance = health["importance"] or {}
    return [name for name, share in importance.items() if share["total"] < INERT]
