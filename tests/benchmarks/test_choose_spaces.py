"""The search of wide spaces: shares of variance, and what it reads off curves."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")


pytestmark = pytest.mark.raw

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(params=["space_search", "choose_spaces"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


def _found(module: ModuleType, loss: np.ndarray) -> object:
    axes = {"learning_rate": (0.1, 1.0, 10.0), "batch_size": (4, 16, 64)}
    return module.Found(axes, (9, 100), (0.2, 1.0), loss, np.array([0.5, 0.7]))


@pytest.mark.parametrize("module", ["choose_spaces"], indirect=True)
def test_health_names_the_optimum_its_edges_and_what_diverges(module: ModuleType) -> None:
    loss = np.full((3, 3, 2, 2, 2), 0.6)
    loss[0], loss[1, 2], loss[2] = 0.55, 0.4, np.inf
    row = dict(zip(module.HEALTH[1:], module.health(_found(module, loss)), strict=True))
    assert row["label frequencies"] == "0.600"
    assert (row["optimum"], row["at"]) == ("0.4000", "1, 64")
    assert row["edges (cost of keeping off)"] == "batch_size high (+37.5 %)"
    assert row["loses to label frequencies"] == f"{100 * 5 / 9:.1f} %"
    assert row["diverges"] == "33.3 %"
    assert row["tau rounds"] == row["tau rates"] == "1.00"


@pytest.mark.parametrize("module", ["choose_spaces"], indirect=True)
def test_a_smaller_space_is_a_part_of_the_wide_grid(module: ModuleType) -> None:
    loss = np.arange(72.0).reshape(3, 3, 2, 2, 2)
    inside = _found(module, loss).within({"learning_rate": (1.0, 10.0), "batch_size": (16,)})
    assert inside.axes == {"learning_rate": (1.0, 10.0), "batch_size": (16,)}
    np.testing.assert_array_equal(inside.at(100, 1.0), loss[1:, 1:2, 1, :, 1])
