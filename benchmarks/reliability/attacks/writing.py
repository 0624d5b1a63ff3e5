"""Everything that writes files, so that what is read back tells which of several writes it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from attacks.files import leaf, make_part, make_record, policy, read_part
from fedhpo_gym.agents.policy import load_policy, save_policy
from fedhpo_gym.cli import main
from fedhpo_gym.core.files import write_text
from fedhpo_gym.data import cache as data_cache
from fedhpo_gym.data.leaf import find_files, read_files, write_files
from fedhpo_gym.records.files import read_record, write_record
from fedhpo_gym.records.record import RunRecord

REPAIR = "the same command"


@dataclass(frozen=True)
class Writer:
    """One way to write.

    Attributes:
        name: what writes.
        write: writes number 1 or 2 into a folder, in the place of what is there if it may.
        read: returns the number that a folder holds, and checks that it is whole.
        exists: whether a folder holds anything under the real names.
        overwrites: whether it may take the place of what is there.
    """

    name: str
    write: Callable[[Path, int], object]
    read: Callable[[Path], int]
    exists: Callable[[Path], bool]
    overwrites: bool = True


def _command(*words: object) -> None:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        status = main([str(word) for word in words])
    if status:
        raise OSError(err.getvalue())


def _policy(folder: Path, number: int) -> None:
    save_policy(policy(number), folder)


def _read_policy(folder: Path) -> int:
    found = load_policy(folder)
    number = round(float(found.weights[0][0, 0]) * 1e3)
    return _whole(number, found.limit == number and len(found.mean) == 50 + number % 7)


def _whole(number: int, holds: bool) -> int:
    if not holds:
        raise ValueError("parts of different writes lie beside one another")
    return number


@cache
def records() -> tuple[RunRecord, RunRecord]:
    """Return two records of the same run, with seeds of 1 and 2."""
    with tempfile.TemporaryDirectory() as folder:
        make_record(Path(folder), 1)
        record = read_record(next(Path(folder).rglob("*.jsonl")))
    return record, replace(record, header=replace(record.header, seed=2))


def _record(folder: Path, number: int) -> None:
    write_record(folder / "a.jsonl", records()[number - 1])


def _read_record(folder: Path) -> int:
    return read_record(folder / "a.jsonl").header.seed


def _read_part(folder: Path) -> int:
    unit = read_part(folder)
    number = int(unit["metrics"].flat[0])
    return _whole(number, bool((unit["metrics"] == number).all()))


def _preprocessed(folder: Path, number: int) -> None:
    source = folder / f"source-{number}"
    write_files(source / "all_data", "all_data", leaf(3 * number), max_users=2)
    _command("leaf-preprocess", source, "--out", folder / "out", "-t", "sample")


def _read_preprocessed(folder: Path) -> int:
    data = read_files(find_files(folder / "out"))
    widths = {len(x) for samples in data.users.values() for x in samples.x}
    return _whole(min(widths) // 3, len(widths) == 1 and data.num_samples == leaf(3).num_samples)


def _report(folder: Path, number: int) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    write_record(folder / "runs" / "a.jsonl", records()[number - 1])
    _command("report", folder / "runs", "--out", folder / "report.html")


def _read_report(folder: Path) -> int:
    text = (folder / "report.html").read_text(encoding="utf-8")
    return _whole(1, text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>"))


def _derived(folder: Path, number: int) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    source = folder / "source"
    if not source.exists():
        write_text(source, "x")
    made = data_cache.derive_arrays("a", [source], lambda: {"x": np.full(5000, 1)}, REPAIR)
    _whole(number, bool((made["x"] == 1).all()))


def _read_derived(folder: Path) -> int:
    _derived(folder, 1)
    return 1


class _Answer(io.BytesIO):
    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content))}


def fetched(folder: Path, _number: int = 1) -> None:
    """Download a file, from a server that always answers, unless it is there."""
    content = json.dumps(list(range(9000))).encode()
    data_cache.open_url = lambda _url: _Answer(content)  # type: ignore[assignment]
    data_cache.fetch_file("https://example.org/file", folder / "data" / "file", None, REPAIR)


def read_fetched(folder: Path) -> int:
    """Return 1 if the file that `fetched` leaves is whole."""
    fetched(folder)
    return _whole(1, json.loads((folder / "data" / "file").read_bytes()) == list(range(9000)))


def _named(name: str) -> Callable[[Path], bool]:
    return lambda folder: (folder / name).exists()


WRITERS = (
    Writer("card and arrays", _policy, _read_policy, _named("policy.json")),
    Writer("run record", _record, _read_record, _named("a.jsonl")),
    Writer("unit of a build", make_part, _read_part, _named("unit.npz")),
    Writer("leaf-preprocess", _preprocessed, _read_preprocessed, _named("out"), overwrites=False),
    Writer("report", _report, _read_report, _named("report.html")),
    Writer("derived arrays", _derived, _read_derived, _named("cache")),
    Writer("download", fetched, read_fetched, _named("data/file"), overwrites=False),
)
