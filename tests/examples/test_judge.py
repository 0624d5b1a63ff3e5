"""`examples/judge.py` refuses what it cannot judge in one line."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

JUDGE = Path(__file__).resolve().parents[2] / "examples" / "judge.py"
ID = "FedHPO-DAC-Quadratic-v1"


def judge(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return what the program ends with."""
    monkeypatch.setattr(sys, "argv", [str(JUDGE), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JUDGE))
    return str(ended.value.code)


def test_a_file_that_is_no_policy_of_the_id_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"mean": np.zeros(3), "variance": np.ones(3), "weight_0": np.ones((3, 2))}
    np.savez(tmp_path / "foreign.npz", a=np.ones(3))
    np.savez(tmp_path / "other.npz", **other, bias_0=np.zeros(2))
    np.savez(tmp_path / "empty.npz", mean=0.0, variance=1.0)
    (tmp_path / "text.npz").write_text("no archive", encoding="utf-8")
    for name in ("foreign", "other", "empty", "text"):
        path = tmp_path / f"{name}.npz"
        words = judge(monkeypatch, ID, str(path))
        assert words.startswith(f"FILE must hold a policy of {ID}, got {path}: ")


def test_an_id_with_a_vector_of_rewards_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(monkeypatch, f"MO-{ID}")
    assert f"ID must be one with a single reward, {ID}, got MO-{ID}" in capsys.readouterr().err
