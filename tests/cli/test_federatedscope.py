"""`fedhpo-gym federatedscope`, and what `list` says of it."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest

from federatedscope_peer import pretend
from fedhpo_gym.backends.federatedscope import installation as module
from fedhpo_gym.backends.federatedscope.installation import CARD, VARIABLE, find_installation
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import PeerError
from fedhpo_gym.tasks import TASKS

Capture = pytest.CaptureFixture[str]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def tree(tmp_path: Path) -> str:
    return pretend(tmp_path, "no-module", tmp_path / "pids")["source"]


def pretend_to_run(monkeypatch: pytest.MonkeyPatch, fails_at: str = "") -> list[list[str]]:
    """Let commands make an empty interpreter, and one of them fail."""
    asked: list[list[str]] = []

    def run(command: Iterable[str]) -> None:
        words = list(command)
        asked.append(words)
        if fails_at in words:
            raise PeerError("no such package")
        if "venv" in words:
            made = Path(words[-1]) / "bin" / "python"
            made.parent.mkdir(parents=True)
            made.write_text("#!/bin/sh\n", encoding="utf-8")
            made.chmod(0o755)

    monkeypatch.setattr(module, "_run", run)
    return asked


def test_it_says_what_it_needs_and_does_nothing(tmp_path: Path, tree: str, capsys: Capture) -> None:
    words = ["federatedscope", "install", str(tmp_path / "new"), "--source", tree, "--dry-run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for needed in ("torch", "1.5 GB", tree, "nothing there is changed"):
        assert needed in said
    assert not (tmp_path / "new").exists()


def test_a_source_that_is_not_there_is_an_error_before_anything_is_promised(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ["federatedscope", "install", str(tmp_path / "new"), "--source", str(tmp_path / "gone")]
    assert main([*words, "--dry-run"]) == ERROR
    said = capsys.readouterr()
    assert not said.out
    assert "source" in said.err
    assert str(tmp_path / "gone") in said.err


def test_what_is_installed_is_found(
    tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend_to_run(monkeypatch)
    folder = tmp_path / "new"
    assert main(["federatedscope", "install", str(folder), "--source", tree]) == 0
    venv, pip = asked
    assert "torch==2.13.0" in pip
    fixed = (folder / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(word.count("==") == 1 for word in fixed)
    assert set(module.DIRECT) <= set(fixed)
    assert set(json.loads((folder / CARD).read_text(encoding="utf-8"))) == {"source", "interpreter"}
    monkeypatch.setenv(VARIABLE, str(folder))
    assert find_installation().interpreter == Path(venv[-1]) / "bin" / "python"
    assert str(find_installation().source) == tree


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_a_failure_leaves_nothing_that_is_taken_for_an_installation(
    tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, step: str
) -> None:
    pretend_to_run(monkeypatch, step)
    folder = tmp_path / "new"
    assert main(["federatedscope", "install", str(folder), "--source", tree]) == 2
    assert "no such package" in capsys.readouterr().err
    assert not list(folder.iterdir())
    pretend_to_run(monkeypatch)
    assert main(["federatedscope", "install", str(folder), "--source", tree]) == 0  # again


def test_what_cannot_be_installed_is_refused(
    tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pretend_to_run(monkeypatch)

    def refused(folder: Path, source: str, words: str) -> None:
        assert main(["federatedscope", "install", str(folder), "--source", source]) == 2
        assert words in capsys.readouterr().err

    refused(tmp_path, tree, "must be a new or an empty folder")
    refused(tmp_path / "new", str(tmp_path), "must be FederatedScope's source tree")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10**6))
    refused(tmp_path / "new", tree, "1,500 MB are free")


def test_the_doctor_names_the_first_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["federatedscope", "doctor"]) == 1
    assert "FAULT  source and interpreter" in capsys.readouterr().out
    broken = pretend(tmp_path, "no-module", tmp_path / "pids")
    words = ["federatedscope", "doctor", "--source", broken["source"]]
    assert main([*words, "--interpreter", broken["interpreter"]]) == 1
    said = capsys.readouterr().out
    assert "ok     source and interpreter" in said
    assert "FAULT  imports" in said
    assert "No module named 'torch'" in said
    broken = pretend(tmp_path, "crash", tmp_path / "pids")
    assert main([*words, "--interpreter", broken["interpreter"]]) == 1
    said = capsys.readouterr().out
    assert "ok     imports: federatedscope 0.3.0" in said
    assert "FAULT  a course" in said


def test_list_says_which_ids_it_answers_and_why_not_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["list"]) == 0
    without = capsys.readouterr().out
    few = 'backend="federatedscope" does not answer '
    assert f"{few}{len(TASKS)} of these ids here" in without
    paths = pretend(tmp_path, "crash", tmp_path / "pids")
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / CARD).write_text(json.dumps(paths), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(folder))
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if line.startswith("FedHPO-LR-CreditG-v1 ")][:1]
    assert line.endswith("raw, federatedscope")
    assert few in said
    assert main(["show", "FedHPO-BERT-SST2-v0"]) == 0
    assert "not BERT" in " ".join(capsys.readouterr().out.split())
