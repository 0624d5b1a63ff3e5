"""The studies of noise and of workers run to their end and say what they promise."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "studies"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def run(module: Any, out: Path) -> str:
    module.main(["--quick", "--out", str(out), "--workers", "1"])
    return (out / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_of_noise(study: Any, tmp_path: Path) -> None:
    words = run(study("noise_study"), tmp_path)
    assert "Proxy tuning" in words
    assert (tmp_path / "noise.png").stat().st_size > 1000
    found = [json.loads(path.read_text()) for path in tmp_path.glob("tune-*.json")]
    assert len(found) == 2 * 2 * 3
    assert all(0.0 <= error <= 1.0 for errors in found for error in errors)


@pytest.mark.slow
def test_the_study_of_workers(study: Any, tmp_path: Path) -> None:
    assert "time to the loss of W = 1" in run(study("workers_study"), tmp_path)
    assert (tmp_path / "workers.png").stat().st_size > 1000
    trials = {
        path.stem: json.loads(path.read_text())["trials"]
        for path in tmp_path.glob("CNN-FEMNIST-*.json")
    }
    assert len(trials) == 4
    assert min(trials["CNN-FEMNIST-random-4"]) > max(trials["CNN-FEMNIST-random-1"])
