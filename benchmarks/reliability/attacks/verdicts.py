"""What an attempt can end with, and cases that run in processes with limits."""

from __future__ import annotations

import json
import os
import pickle
import resource
import select
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

KINDS = ("fine", "documented", "undocumented", "silent", "lost", "hung", "memory")
"""As before; an error of this package; any other; another answer; lost or torn; no end; too big."""
ROOM = 1 << 30
"""Bytes that a process may take beyond those it has when its first case begins."""
MAX_SAID = 2000
"""Characters of what a case says that are told."""
LIMIT_S = 20.0
KEPT = 3


@dataclass
class Tally:
    """How often each verdict was given to one row of the table.

    Attributes:
        name: the row.
        counts: cases by verdict.
        faults: by verdict, the first cases that deserve a look, with what they said.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, case: object = "", said: str = "") -> None:
        """Count a case."""
        self.counts[kind] += 1
        if kind not in KINDS[:2]:
            same = said.partition(":")[0]
            kept = self.faults.setdefault(kind, [])
            if len(kept) < KEPT or not any(f": {same}" in other for other in kept):
                kept.append(f"case {case}: {said}")


def judged(attempt: Callable[[], str]) -> tuple[str, str]:
    """Return the verdict of an attempt, which returns one or raises, and what was said."""
    from gymnasium.error import Error  # what gymnasium itself refuses, such as a seed of "x"

    from fedhpo_gym.core.errors import FedHPOError

    try:
        return attempt(), ""
    except (FedHPOError, Error) as error:
        return "documented", repr(error)
    except MemoryError as error:
        return "memory", _where(error)
    except Exception as error:  # noqa: BLE001 - what may come is the question
        return "undocumented", _where(error)


def _where(error: Exception) -> str:
    """Return the error and the last line of the package on its way."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}fedhpo_gym{os.sep}" in frame.filename]
    last = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}{last}: {str(error)[:120]}"


def run_cases(
    name: str, count: int, case: Callable[[int], tuple[str, str]], first: int = 0
) -> Tally:
    """Run numbered cases in processes of their own, many in each, and count the verdicts.

    Args:
        name: the row of the table.
        count: how many cases.
        case: does one, and returns its verdict and what was said.
        first: number of the first.
    """
    tally, number, end = Tally(name), first, first + count
    while number < end:
        reading, writing = os.pipe()
        if not (process := os.fork()):
            os.close(reading)
            _serve(writing, case, number, end)
        os.close(writing)
        number = _collect(tally, reading, process, number, end)
    return tally


def _serve(pipe: int, case: Callable[[int], tuple[str, str]], first: int, end: int) -> None:
    """Do cases in this new process until there is none left."""
    try:
        os.setsid()
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = held * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for number in range(first, end):
            kind, said = case(number)
            message = json.dumps([kind, said[:MAX_SAID]]).encode()
            os.write(pipe, len(message).to_bytes(4, "little") + message)
    finally:
        os._exit(0)


def _collect(tally: Tally, pipe: int, process: int, number: int, end: int) -> int:
    """Count what a process reports; return the number of the case to go on with."""
    with os.fdopen(pipe, "rb", buffering=0) as stream:
        while number < end:
            ready, _, _ = select.select([stream], [], [], LIMIT_S)
            message = _message(stream) if ready else None
            if message is None:
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                kind = "undocumented" if ready else "hung"
                tally.add(kind, number, "the process ended" if ready else f"{LIMIT_S:g} s")
                number += 1
                break
            kind, said = json.loads(message)
            tally.add(kind, number, said)
            number += 1
    os.waitpid(process, 0)
    return number


def _message(stream: FileIO) -> bytes | None:
    """Return what a process wrote about a case; None if it ended before that was whole."""
    found = b""
    wanted = 4
    while len(found) < wanted:
        part = stream.read(wanted - len(found))
        if not part:
            return None
        found += part
        if len(found) == 4 == wanted:
            wanted += int.from_bytes(found, "little")
    return found[4:]


def same(answer: Any, other: Any) -> bool:
    """Return whether two answers agree in every bit; they are nested in any way."""
    return pickle.dumps(answer) == pickle.dumps(other)
