"""Working folders that outlive no process, however it ends, unless they are kept.

Whoever makes a folder holds a lock on a file in it. The system gives the lock back when the process
is gone, killed or not, and who makes the next folder removes those whose lock is free. The file
gets its name when it is locked, so a new folder is never taken for an abandoned one. A folder
without the file is kept, and removed by nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "fedhpo-federatedscope-"
OWNED = "owned"
"""Name of the file whose lock says that a folder is in use."""


class WorkingFolder:
    """A new temporary folder.

    Attributes:
        path: where it is.
    """

    def __init__(self) -> None:
        """Make it, after removing those whose processes are gone.

        Raises:
            OSError: it cannot be made.
        """
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        part = self.path / f"{OWNED}.part"
        self._lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # without locks here, a folder that is left behind stays
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.rename(self.path / OWNED)

    def keep(self) -> None:
        """Leave it to whoever looks into it."""
        with suppress(OSError):
            (self.path / OWNED).unlink(missing_ok=True)
        self._release()

    def remove(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Delete the folders of this user whose processes are gone; several may do so side by side."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    lock = os.open(path / OWNED, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
