"""Validation of Arrow and Parquet files in another process, because a damaged file may crash it.

`require_sound` sends requests to the program `core.arrow_reader`. It starts at the first call and
ends with this process, so that a folder of many small files costs one start. It is also ended after
each unsound file, so that nothing which such a file did to its memory affects the next one.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, cast

from fedhpo_gym.core.arrow_reader import SOUND, TOO_LARGE
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import growth_limit, require_growth

_START_S, _BYTES_PER_S = 60.0, 1e6
"""Time limit of reading: seconds for any file, and bytes for each additional second."""

_lock = threading.Lock()
_readers: dict[int, subprocess.Popen[bytes]] = {}
"""The running program, by the process that started it: a forked process starts one of its own."""


def require_sound(paths: Sequence[Path], folder: str | None = None) -> None:
    """Check that all rows of some files can be read, and that their size is plausible.

    Args:
        paths: Parquet files, and Arrow's streams in files of other names.
        folder: folder for uncompressed copies, streams named `0`, `1`, ..., one for each file.

    Raises:
        TooLargeError: unpacked, they exceed `growth_limit` of their size.
        InvalidArgumentError: they are damaged.
    """
    stored = sum(path.stat().st_size for path in paths)
    limit = growth_limit(stored)
    request = {"limit": limit, "files": [str(path.resolve()) for path in paths], "folder": folder}
    with _lock:
        answer = _send_request(json.dumps(request), _START_S + stored / _BYTES_PER_S)
    if answer == TOO_LARGE:
        require_growth(limit + 1, stored, paths[0].parent if len(paths) > 1 else paths[0])
    if answer != SOUND:
        raise InvalidArgumentError(answer)


def _send_request(request: str, timeout_s: float) -> str:
    reader = _readers.get(os.getpid())
    if reader is None or reader.poll() is not None:
        reader = _readers[os.getpid()] = subprocess.Popen(  # noqa: S603 - of this package
            [sys.executable, "-P", str(Path(__file__).with_name("arrow_reader.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,  # else a Ctrl-C would end it, and look like damage
        )  # fmt: skip
        atexit.register(_end_reader)
    answer = ""
    try:
        requests, answers = cast("IO[bytes]", reader.stdin), cast("IO[bytes]", reader.stdout)
        with open(requests.fileno(), "wb", closefd=False) as pipe:  # writes all, also in parts
            pipe.write(request.encode("ascii") + b"\n")
        if not wait([answers.fileno()], timeout_s):
            return f"reading it took {timeout_s:g} s"
        answer = answers.readline().decode("utf-8", "replace").strip()
    except BrokenPipeError:
        pass  # it has ended
    finally:
        if answer != SOUND:
            status = _end_reader()
    return answer or f"it ended the process that read it by signal {-status}"


def _end_reader() -> int:
    """End the program that this process started, if any, and return its exit status."""
    atexit.unregister(_end_reader)
    reader = _readers.pop(os.getpid(), None)
    if reader is None:
        return 0
    reader.kill()
    with reader:
        return reader.wait()
