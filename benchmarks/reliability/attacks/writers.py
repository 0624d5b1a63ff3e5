"""Writers that are killed, that meet one another, and that are watched by readers."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attacks.verdicts import Tally, judged
from attacks.writing import WRITERS, Writer, records
from fedhpo_gym.core.seeding import stream

LONGEST_S = 0.05
WATCHED_S = 0.3
REPLACING = tuple(writer for writer in WRITERS if writer.overwrites)


def kills(count: int, seed: int, room: Path) -> list[Tally]:
    """Kill every writer at random moments: what was there stays, or what is new is whole."""
    return [killed(i, writer, count, seed, room) for i, writer in enumerate(WRITERS)]


def killed(number: int, writer: Writer, count: int, seed: int, room: Path) -> Tally:
    """Kill one writer at random moments, in new folders and where something is."""
    tally = Tally(f"killed: {writer.name}")
    for index in range(count):
        rng = stream(seed, "kills", number, index)
        with _folder(room) as folder:
            delay = float(rng.uniform(0.0, LONGEST_S))
            overwriting = writer.overwrites and index % 2 == 1
            if overwriting:
                writer.write(folder, 1)
            process = _started(partial(_forever, writer, folder, overwriting))
            time.sleep(delay)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            places = [folder] if overwriting else sorted(folder.glob("new-*"))
            for place in places:
                if overwriting or writer.exists(place):
                    tally.add(*_read(writer, place, f"{index} after {delay:.4f} s"))
                else:
                    tally.add("fine")
            if not places:
                tally.add("fine")
    return tally


def _forever(writer: Writer, folder: Path, overwriting: bool) -> None:
    for number in itertools.count():
        place = folder
        if not overwriting:
            place = folder / f"new-{number}"
            place.mkdir()
        writer.write(place, number % 2 + 1)


def _read(writer: Writer, place: Path, case: str) -> tuple[str, str, str]:
    """Return the verdict on a folder that must hold one whole write."""
    kind, said = judged(lambda: _one_of(writer.read(place)))
    return "fine" if kind == "fine" else "lost", case, said


def _one_of(number: int) -> str:
    if number not in (1, 2):
        raise ValueError(f"nobody wrote {number}")
    return "fine"


@contextmanager
def _folder(room: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=room, ignore_cleanup_errors=True) as home:
        folder = Path(home) / "files"
        folder.mkdir()
        records()  # once, before processes are forked that need it
        yield folder


def _started(work: Callable[[], object]) -> int:
    process = os.fork()
    if not process:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return process


def two_writers(count: int, room: Path) -> list[Tally]:
    """Let two processes write one thing over and over: none fails, and one whole write is left."""
    return [_together(writer, count, room) for writer in REPLACING]


def _together(writer: Writer, count: int, room: Path) -> Tally:
    tally = Tally(f"two writers: {writer.name}")
    for index in range(count):
        with _folder(room) as folder:
            processes = [_started(partial(_often, writer, folder, n)) for n in (0, 1)]
            for process in processes:
                _, status = os.waitpid(process, 0)
                tally.add("undocumented" if status else "fine", index, f"status {status}: a writer")
            tally.add(*_read(writer, folder, str(index)))
            left = [path.name for path in folder.rglob("*.part")]
            if left:
                tally.add("lost", index, f"left over: {left[:3]}")
    return tally


def _often(writer: Writer, folder: Path, first: int) -> None:
    end = time.monotonic() + WATCHED_S
    for number in itertools.count(first):
        writer.write(folder, number % 2 + 1)
        if time.monotonic() > end:
            return


def beside(count: int, room: Path) -> list[Tally]:
    """Read beside a writer that overwrites: every look finds one whole write."""
    return [_beside(writer, count, room) for writer in REPLACING]


def _beside(writer: Writer, count: int, room: Path) -> Tally:
    tally = Tally(f"a reader beside a writer: {writer.name}")
    for index in range(count):
        with _folder(room) as folder:
            writer.write(folder, 1)
            process = _started(partial(_often, writer, folder, 0))
            while not os.waitpid(process, os.WNOHANG)[0]:
                tally.add(*_read(writer, folder, str(index)))
    return tally
