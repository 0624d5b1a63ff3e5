"""Makes fitting surrogates quick enough for a test."""

from __future__ import annotations

import pytest

FEW = {
    "candidates.FEWEST_STEPS": 60,
    "candidates.BOOSTED_TREES": 30,
    "gaussian.POINTS": 100,
    "gaussian.LIKELY_ROWS": 40,
    "gaussian.STEPS": 10,
}


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let candidates take few steps, trees and points."""
    for name, value in FEW.items():
        patch.setattr(f"fedhpo_gym.fitting.{name}", value)
