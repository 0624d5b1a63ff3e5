"""Makes fitting surrogates quick enough for a test."""

from __future__ import annotations

import pytest

FEW = {"FEWEST_STEPS": 30, "BOOSTED_TREES": 30, "KERNEL_POINTS": 100}


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let candidates take few steps, trees and points, and ask few for the health."""
    for name, value in FEW.items():
        patch.setattr(f"fedhpo_gym.fitting.candidates.{name}", value)
    patch.setattr("fedhpo_gym.landscape.lattice.DRAWS", 16)
