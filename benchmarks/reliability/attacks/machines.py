"""Small file systems that are full, or may only be read: needs the rights to mount one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks.verdicts import Tally, judged
from attacks.writing import WRITERS, Writer, records
from fedhpo_gym.core.seeding import stream

SIZE = 4 << 20


def full_disks(count: int, seed: int) -> list[Tally]:
    """Write where there is no room, and where nothing may be written: an error, nothing lost."""
    tallies = []
    for number, writer in enumerate(WRITERS):
        for state in ("full", "read-only"):
            tally = Tally(f"{state} disk: {writer.name}")
            try:
                for index in range(count):
                    _attempt(tally, writer, state, index, stream(seed, "disks", number, index))
            except _NoMount:
                tally.name += " (skipped: file systems cannot be mounted here)"
            tallies.append(tally)
    return tallies


class _NoMount(Exception):  # noqa: N818 - no error, but a machine where it cannot be tried
    """No file system can be mounted here."""


@contextmanager
def _mounted() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as home:
        records()
        small = Path(home) / "small"
        small.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(small)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise _NoMount
        try:
            yield small
        finally:
            os.sync()
            subprocess.run(["umount", "-l", str(small)], capture_output=True, check=False)  # noqa: S607


def _attempt(tally: Tally, writer: Writer, state: str, index: int, rng: object) -> None:
    with _mounted() as small:
        folder = small / "files"
        folder.mkdir()
        writer.write(folder, 1)
        if state == "full":
            spare = int(rng.integers(4096)) if index else 0  # type: ignore[attr-defined]
            _fill(small / "filler", spare)
        else:
            options = ["mount", "-o", "remount,ro", str(small)]
            subprocess.run(options, capture_output=True, check=True)
        kind, said = judged(lambda: _written(writer, folder))
        if said.startswith(("OSError", "PermissionError", "IsADirectoryError")):
            kind = "documented"  # what the system says, and the command line shows in one line
        tally.add(kind, index, said)
        left = [str(path.relative_to(folder)) for path in folder.rglob("*.part")]
        if left and state == "full":
            tally.add("lost", index, f"left over: {left[:3]}")
        kind, said = judged(lambda: "fine" if writer.read(folder) in (1, 2) else "lost")
        tally.add("fine" if kind == "fine" or not writer.overwrites else "lost", index, said)


def _written(writer: Writer, folder: Path) -> str:
    writer.write(folder, 2)
    return "fine"


def _fill(path: Path, spare: int) -> None:
    with path.open("wb", buffering=0) as handle:
        try:
            while True:
                handle.write(b"\0" * 4096)
        except OSError:
            handle.truncate(max(0, handle.tell() - 4096 * (spare // 1024)))
