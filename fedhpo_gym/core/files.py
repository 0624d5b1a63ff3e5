"""Files and folders that appear whole or not at all, whatever ends the process that writes them.

What is written has a temporary name in the same folder that nobody can foresee: two writers never
share one, and no link laid there beforehand is followed. It takes the real name when it is complete
and on the disk. Only a process that is killed outright can leave it behind, as a `.part`.
"""

import errno
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any

from fedhpo_gym.core.errors import InvalidArgumentError, TooLargeError

SUFFIX = ".part"
_KEPT = 40
"""Characters of the real name in a temporary one: names are limited to 255 bytes."""
_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Failures of a disk, whose errors name no file; a network's have none of these numbers."""


@contextmanager
def new_file(path: Path) -> Iterator[BufferedRandom]:
    """Give an empty binary file that takes its place when the body ends without an error."""
    part = _temporary(path)
    # What ends a process may come as soon as the file is there: it is removed then, too.
    try:
        with _said_of(path):
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with naming(path), os.fdopen(descriptor, "w+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        with _said_of(path):
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of writing it: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRITING or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a small text file in UTF-8."""
    with new_file(path) as handle:
        handle.write(text.encode("utf-8"))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that takes its place when the body ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _temporary(path)
    with _said_of(path):
        part.mkdir()
    try:
        yield part
        with _said_of(path):
            part.replace(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(path.parent)


@contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Wait until no other process writes to a folder in such a body, and keep the others waiting.

    Gives whether that holds: some file systems, and systems, cannot lock a folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    is_locked = False
    try:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_locked = True
        yield is_locked
    finally:
        os.close(descriptor)


def left_over(folder: Path, beginning: str) -> list[Path]:
    """Return the temporary files for names that begin so; the sole writer of a folder may ask."""
    return list(folder.glob(f".{glob.escape(beginning[:_KEPT])}*{SUFFIX}"))


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    """Name the file that was asked for in an error that names its temporary form."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name[:_KEPT]}.{secrets.token_hex(8)}{SUFFIX}")


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


ENV_VAR = "FEDHPO_GYM_MAX_BYTES"
DEFAULT = 1 << 29
"""512 MiB: all arrays of a file, uncompressed, or the text of a json file."""

_VALUE, _CONTAINER = 64, 256
"""About the bytes of a number or a short string in a list, and of a list or a dictionary."""
_MOST_DIGITS = 18


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: below `XDG_CACHE_HOME`, else below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedhpo_gym" / name


def max_bytes() -> int:
    """Return how many bytes a file may stand for: `FEDHPO_GYM_MAX_BYTES`, else 512 MiB."""
    text = os.environ.get(ENV_VAR, "").strip()
    if not text:
        return DEFAULT
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    if number < 1:
        raise InvalidArgumentError(
            f"`{ENV_VAR}` must be a positive number of bytes, of at most {_MOST_DIGITS} digits, "
            f"got {text[:40]!r}"
        )
    return number


def require_bytes(size: int, what: object) -> None:
    """Check that something of this size may be read."""
    limit = max_bytes()
    if size > limit:
        raise TooLargeError(
            f"{what} would take {size:,} bytes, and {limit:,} may be read; if it is genuine, set "
            f"the environment variable `{ENV_VAR}` to {size} or more"
        )


def read_json(path: Path) -> Any:
    """Return what a json file says, if it fits into memory."""
    require_bytes(path.stat().st_size, path)
    return load_json(path.read_bytes(), path)


def load_json(
    content: bytes, what: object, share: int = 1, parse_constant: Callable[[str], Any] | None = None
) -> Any:
    """Return what a json text says, if its text and its values fit into memory."""
    require_bytes(len(content), what)
    containers = content.count(b"[") + content.count(b"{")
    values = content.count(b",") + containers
    require_bytes((_VALUE * values + _CONTAINER * containers) // share, f"{what}, decoded,")
    try:
        return json.loads(content, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
