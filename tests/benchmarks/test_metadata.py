"""The meta-data set: all tasks have about as many courses, and a build goes on where it was."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from fedhpo_gym.tables import Sample
from workers import CrewHere

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "tables"
pytestmark = pytest.mark.raw


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("metadata")


def test_passes_grow_and_name_every_task_within_the_rows(metadata: Any) -> None:
    plan = list(metadata.planned(["LR", "Joint"], [], 20_000, [1, 3]))
    assert len(plan) == len({(task.key, size) for task, size in plan}) == 2 * 2 * 21
    assert [size for _, size in plan] == [24] * 21 + [16] * 21 + [72] * 21 + [48] * 21
    assert {task.key for task, _ in plan[:42]} == {task.key for task, _ in plan[42:]}


@pytest.mark.slow
def test_a_build_goes_on_where_it_was(
    metadata: Any, tmp_path: Path, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    monkeypatch.setattr("fedhpo_gym.building.workers.Crew", CrewHere)
    words = ["--regimes", "LR", "--tables", "ScotsSecondary"]

    def build(folder: str, *factors: str) -> tuple[str, Sample]:
        where = tmp_path / folder
        assert metadata.main([*words, "--out", str(where), "--factors", *factors]) == 0
        (card,) = where.glob("*.sample.json")
        (arrays,) = where.glob("*.npz")
        return hashlib.sha256(arrays.read_bytes()).hexdigest(), Sample(card)

    first, small = build("one", "1")
    units = sorted((tmp_path / "one" / "parts").rglob("*.npz"))
    times = [unit.stat().st_mtime_ns for unit in units]
    assert build("one", "1")[0] == first
    grown, large = build("one", "1", "2")
    assert [unit.stat().st_mtime_ns for unit in units] == times  # nothing was computed twice
    assert large.configurations()[: len(small)] == small.configurations()
    assert len(large) == 2 * len(small) == 48
    units[0].unlink()  # as if killed before it was written
    assert build("one", "2")[0] == grown == build("another", "2")[0]
