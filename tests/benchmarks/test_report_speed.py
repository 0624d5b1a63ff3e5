"""The benchmark of reports runs with today's records: what judges read must be what it writes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_small_report_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("report_speed")
    out = tmp_path / "report.md"
    sizes = ["--problems", "2", "--agents", "2", "--seeds", "2", "--trials", "20"]
    monkeypatch.setattr("sys.argv", ["report_speed.py", *sizes, "--out", str(out)])
    module.main()
    assert "| **reading, incumbents and page** |" in out.read_text(encoding="utf-8")
    assert capsys.readouterr().out
