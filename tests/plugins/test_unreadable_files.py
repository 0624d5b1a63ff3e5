"""Files of the user that are missing, packed or unreadable: one line, and nothing else stops."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pandas")
import pandas

import fedhpo_gym
from fedhpo_gym import cli
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.data import cache, load_dataset


def test_a_task_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(MissingDataError, match="`path` must be a task file that can be read"):
            fedhpo_gym.register_task_file(path)


def test_an_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mine.csv", "a,label\n1,0\n")
    with pytest.raises(InvalidArgumentError, match=r"in no archive, got .*mine.csv.zip. Unpack it"):
        fedhpo_gym.new_task(path, clients=2)
    assert cli.main(["new", str(path), "--clients", "2"]) == cli.ERROR
    assert "Unpack it" in capsys.readouterr().err


def test_data_that_cannot_be_read_keep_nothing_else_from_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"x": i % 7, "label": i % 2} for i in range(1000)]
    fedhpo_gym.new_task(pandas.DataFrame(rows), clients=5, name="Locked")
    refused = PermissionError(errno.EACCES, "Permission denied")

    def locked(_: Path) -> str:
        raise refused

    monkeypatch.setattr(cache, "file_sha256", locked)
    load_dataset.cache_clear()
    with pytest.raises(DamagedDataError, match=r"Locked.csv cannot be read \(Permission denied\)"):
        load_dataset("Locked")
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "Locked.csv cannot be read" in " ".join(shown.split())
    assert "FedHPO-LR-CreditG-v1" in shown
