"""Every example runs to its end, without a warning."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("[0-9]*.py"))
STUDIES = ("train_dac_policy", "fedex_study")


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path) -> None:
    assert run(path).strip()


@pytest.mark.raw
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_and_goes_on_where_it_stopped(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: a fresh interpreter would spend its time on importing torch."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    study = importlib.import_module(name)
    study.main(["--quick", "--out", str(tmp_path)])
    first = capsys.readouterr().out
    assert "±" in first
    assert list(tmp_path.glob("*.png"))
    pieces = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    next(iter(pieces)).unlink()
    study.main(["--quick", "--out", str(tmp_path)])
    assert numbers(capsys.readouterr().out) == numbers(first)
    changed = [file for file, time in pieces.items() if file.stat().st_mtime_ns != time]
    assert changed == [next(iter(pieces))]


def numbers(report: str) -> list[str]:
    """Return the tables of a report; CPU times differ."""
    return [line for line in report.splitlines() if line.startswith("|")]


def run(path: Path, *arguments: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
