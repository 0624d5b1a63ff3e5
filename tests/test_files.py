"""Files appear whole or not at all, under names that nobody can foresee."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from pieces import write as write_piece

from fedhpo_gym.core import files
from fedhpo_gym.core.archive import write_archive
from fedhpo_gym.core.files import new_file, new_folder, write_text
from fedhpo_gym.data.cache import ENV_VAR as DATA
from fedhpo_gym.data.cache import data_folder, write_arrays
from fedhpo_gym.stored.catalogue import ENV_VAR as TABLES
from fedhpo_gym.stored.catalogue import table_folder
from fedhpo_gym.tasks.own import write_task

NOISE = np.random.default_rng(0).integers(0, 256, 200_000).astype(np.uint8)
WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda folder: write_text(folder / "text", "word " * 20_000),
    "piece": lambda folder: write_piece(folder / "piece.json", list(range(20_000))),
    "cache": lambda folder: write_arrays(folder / "cache.npz", {"noise": NOISE}),
    "archive": lambda folder: write_archive(folder, "stem", {"format": 1}, {"noise": NOISE}),
}


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the system refuse to write more of a file, as it does when the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_named_with_what_was_to_be_written(
    writer: Callable[[Path], object], tmp_path: Path
) -> None:
    with files_at_most(1000), pytest.raises(OSError, match="File too large") as refused:
        writer(tmp_path)
    path = Path(refused.value.filename)
    assert path.parent == tmp_path
    assert not path.name.startswith(".")


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_leaves_nothing(writer: Callable[[Path], object], tmp_path: Path) -> None:
    with files_at_most(10_000), pytest.raises(OSError, match="large"):
        writer(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_nothing_temporary_stays_behind(writer: Callable[[Path], object], tmp_path: Path) -> None:
    writer(tmp_path)
    writer(tmp_path)
    assert list(tmp_path.iterdir())
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*"))


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with suppress(KeyboardInterrupt), new_file(path) as handle:
        handle.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_names_is_kept(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "report.html").symlink_to(victim)
    write_text(tmp_path / "report.html", "page")
    assert victim.read_text() == "precious"
    assert (tmp_path / "report.html").read_text() == "page"


def test_two_writers_never_share_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with new_file(path) as first, new_file(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"first"  # the last to be complete


def test_a_signal_right_after_a_file_is_there_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_and_end(*arguments: Any) -> int:
        os.close(opened(*arguments))
        raise SystemExit(1)  # as a handler of SIGTERM does

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_and_end)
        with pytest.raises(SystemExit), new_file(tmp_path / "text"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_rights_that_the_user_gives_new_files(tmp_path: Path) -> None:
    for mask, mode in ((0o077, 0o600), (0o022, 0o644)):
        old = os.umask(mask)
        try:
            write_text(tmp_path / "file", "text")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_long_name_has_room_for_a_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    write_text(path, "text")
    assert path.read_text() == "text"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with suppress(ZeroDivisionError), new_folder(target) as folder:
        (folder / "file").touch()
        assert not target.exists()
        raise ZeroDivisionError
    assert list(target.parent.iterdir()) == []
    with new_folder(target) as folder:
        (folder / "file").touch()
    assert [path.name for path in target.parent.rglob("*")] == ["folder", "file"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(OSError, match="directory") as caught:
            write_text(path, "text")
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "variable", "name"),
    [(table_folder, TABLES, "tables"), (data_folder, DATA, "datasets")],
    ids=["tables", "data"],
)
def test_folders_of_the_user(
    folder: Callable[[], Path], variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for environ, expected in (
        ({variable: "/a/b"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, f"/c/fedhpo_gym/{name}"),
        ({"HOME": "/home/me"}, f"/home/me/.cache/fedhpo_gym/{name}"),
        ({"HOME": "/home/me", variable: "~/mine"}, "/home/me/mine"),
    ):
        with monkeypatch.context() as patch:
            for unset in (variable, "XDG_CACHE_HOME"):
                patch.delenv(unset, raising=False)
            for key, value in environ.items():
                patch.setenv(key, value)
            assert folder() == Path(expected)


def test_a_table_of_ones_own_that_cannot_be_replaced_stays_with_its_task_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(900.0), "label": [0, 1] * 450})
    write_task(frame, clients=5, name="Mine", folder=tmp_path)
    content = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(content) == 2

    def new_file(path: Path) -> Any:
        return full() if path.suffix == ".toml" else whole(path)

    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    whole = files.new_file
    monkeypatch.setattr(files, "new_file", new_file)
    with pytest.raises(OSError, match="No space"):
        write_task(-frame, clients=5, name="Mine", folder=tmp_path, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == content
