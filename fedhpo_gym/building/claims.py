"""Who computes what, where several builds share a folder.

A claim is a lock on one byte of one file. The system gives it back when its process ends, however
it ends, so no claim is ever out of date; and it reaches the machines that share the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NAME = "claims"


@contextmanager
def claim(folder: Path, positions: Sequence[int]) -> Iterator[bool]:
    """Claim some bytes for the body of the `with` statement; give whether they are ours.

    A process must not claim a position twice. Where the file system knows no locks, everything is
    ours: builds then do the same work several times, and nothing worse.

    Args:
        folder: the folder that the builds share.
        positions: numbers of what is claimed, all or nothing.
    """
    descriptor = _open(folder / NAME)
    held: list[int] = []
    try:
        yield all(_lock(descriptor, position, held) for position in positions)
    finally:
        for position in held:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, position)


def _lock(descriptor: int, position: int, held: list[int]) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # no locks here
        return True
    held.append(position)
    return True


@cache
def _open(path: Path) -> int:
    # Never closed: closing any descriptor of the file would give all claims of the process back.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
