"""The studies of Profet run to their end, and go on where they stopped."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.core.seeding import stream

pytest.importorskip("gpytorch")

SVM = "--svm or --data"
QUICK = ["--quick", "--workers", "1"]


@pytest.fixture(scope="module")
def svm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty data sets of sixteen kernels: the best gamma is one of two, and errors differ."""
    folder, rng = tmp_path_factory.mktemp("svm"), stream(0, "test_profet_studies")
    grid = np.array([*product(np.linspace(-5 / 6, 1.0, 4), np.linspace(-1.0, 0.75, 4))])
    for task in range(30):
        away = np.abs(grid - [0.5, -0.5 if task % 2 else 0.5]).sum(axis=1)
        accuracy = np.round(0.9 - 0.2 * away - 0.01 * rng.random(16), 4)
        rows = [f"{a} 1.0 0.0 0.0 {c} {g}" for a, (c, g) in zip(accuracy, grid, strict=True)]
        (folder / f"data-{task:02}").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "again", "tables"),
    [
        (
            "profet_study",
            QUICK,
            "paper-nine-de.json",
            [
                "### generated tasks",
                "| tau with held-out real tasks |",
                "| optimum at x = 1 | 100%",
            ],
        ),
        ("profet_acceptance", QUICK, "wavy-0.json", ["| paper | 0 | spread |", "| wavy | 0 |"]),
        (
            "profet_acceptance",
            [*QUICK, "--family", "svm", "--data", SVM],
            "svm-0.json",
            ["| svm | 0 | spread |", "| svm | 0 | tau |", "of 25 |"],
        ),
        (
            "profet_latent",
            ["--seeds", "2", "--steps", "20", "--svm", SVM],
            "svm-0.json",
            ["| Bayesian GP-LVM, split 0 |", "| principal components, split 0 |", "| by chance |"],
        ),
    ],
    ids=["study", "acceptance", "acceptance of files", "latent"],
)
def test_a_study_goes_on_where_it_stopped(
    script: str,
    words: Sequence[str],
    again: str,
    tables: Sequence[str],
    svm: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, steps in {"STEPS": 10, "FIRST_STEPS": 20}.items():
        monkeypatch.setattr(f"profet_bohamiann.{name}", steps)
    monkeypatch.setattr("profet_report.RESAMPLES", 20)
    main = importlib.import_module(script).main
    asked = [*(str(svm) if word == SVM else word for word in words), "--out", str(tmp_path)]
    main(asked)
    first = capsys.readouterr().out
    (report,) = tmp_path.glob("*.md")
    assert first.strip() == report.read_text(encoding="utf-8").strip()
    assert [words for words in tables if words not in first] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != report]
    times = {path: path.stat().st_mtime_ns for path in files}
    (tmp_path / again).unlink()
    main(asked)
    assert capsys.readouterr().out == first
    changed = [path.name for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [again]
