"""Makes fitting surrogates quick enough for a test."""

from __future__ import annotations

import pytest

FEW = {
    "candidates.FEWEST_STEPS": 60,
    "candidates.BOOSTED_TREES": 30,
    "candidates.POINTS": 100,
    "candidates.LIKELY_ROWS": 40,
    "candidates.STEPS": 10,
}


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let candidates take few steps, trees and points, and ask few for the health."""
    for name, value in FEW.items():
        patch.setattr(f"fedhpo_gym.building.{name}", value)
    patch.setattr("fedhpo_gym.stored.lattice.DRAWS", 16)
