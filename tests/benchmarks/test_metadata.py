"""The meta-data set: a build that was stopped goes on where it was, to the same numbers."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedhpo_gym.stored.sample import Sample
from workers import CrewHere

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "tables"
pytestmark = pytest.mark.raw


@pytest.mark.slow
def test_a_build_goes_on_where_it_was(
    tmp_path: Path, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    metadata = importlib.import_module("metadata")
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
