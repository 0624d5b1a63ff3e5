"""Files and folders that appear whole or not at all, whatever ends the process that writes them.

What is written has a temporary name in the same folder that nobody can foresee: two writers never
share one, and no link laid there beforehand is followed. It takes the real name when it is complete
and on the disk. Only a process that is killed outright can leave it behind, as a `.part`.
"""

import bz2
import errno
import glob
import gzip
import io
import json
import lzma
import os
import re
import secrets
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any, Final

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
        with naming_file(path), os.fdopen(descriptor, "w+b") as handle:
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
def naming_file(path: Path) -> Iterator[None]:
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
def new_text(path: Path, text: str) -> Iterator[None]:
    """Have a text on the disk, which takes its place when the body ends without an error."""
    with new_file(path) as handle:
        handle.write(text.encode("utf-8"))
        handle.flush()
        os.fsync(handle.fileno())
        yield


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


def leftover_files(folder: Path, beginning: str) -> list[Path]:
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


MAX_BYTES_VARIABLE = "FEDHPO_GYM_MAX_BYTES"
DEFAULT_MAX_BYTES = 1 << 29
"""512 MiB: all arrays of a file, uncompressed, or the text of a json file."""

_VALUE, _CONTAINER = 64, 256
"""About the bytes of a number or a short string in a list, and of a list or a dictionary."""
_MOST_DIGITS = 18


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: below `XDG_CACHE_HOME`, else below ~/.cache."""
    return expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedhpo_gym" / name


def expand_home(folder: str) -> Path:
    """Return a folder whose name may begin with ~; one that cannot be where nobody has a home."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:  # a user of a container that no file of passwords names
        return Path(os.devnull, folder.lstrip("~/"))


def path_exists(path: Path) -> bool:
    """Return whether there is a file or folder that can be reached.

    `Path.exists` raises for a name that is too long, and below a folder that may not be entered,
    such as the home of another user: nothing of this user is there.
    """
    return os.path.exists(path)  # noqa: PTH110


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the sorted paths in a folder that match; none where it cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def max_bytes() -> int:
    """Return how many bytes a file may stand for: `FEDHPO_GYM_MAX_BYTES`, else 512 MiB."""
    text = os.environ.get(MAX_BYTES_VARIABLE, "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    if number < 1:
        raise InvalidArgumentError(
            f"`{MAX_BYTES_VARIABLE}` must be a positive number of bytes, of at most {_MOST_DIGITS} "
            f"digits, got {text[:40]!r}"
        )
    return number


def require_bytes(size: int, what: object) -> None:
    """Check that something of this size may be read."""
    limit = max_bytes()
    if size > limit:
        raise TooLargeError(
            f"{what} would take {size:,} bytes, and {limit:,} may be read; if it is genuine, set "
            f"the environment variable `{MAX_BYTES_VARIABLE}` to {size} or more"
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


GROWTH: Final = 64
"""Bytes that each byte of a file may stand for. Text packs about 3 to 20 times."""
_PACKED: Final[Mapping[str, Callable[[io.BytesIO], Any]]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open,
}  # fmt: skip
_PIECE: Final = 1 << 20


def growth_limit(stored: int) -> int:
    """Return the bytes that a file of a size may stand for: `GROWTH` times it, or 64 MiB."""
    return max(max_bytes() // 8, GROWTH * stored)


def require_growth(size: int, stored: int, what: object) -> None:
    """Check that unpacked or decoded data are in proportion to the size of their file."""
    if size > (limit := growth_limit(stored)):
        raise TooLargeError(
            f"{what} of {stored:,} bytes would take {size:,} bytes or more, and {limit:,} may be "
            f"read; if it is genuine, set the environment variable `{MAX_BYTES_VARIABLE}` to "
            f"{8 * size} or more"
        )


def read_unpacked(path: Path | zipfile.Path, most: int | None = None) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz, .bz2 or .xz.

    Raises:
        TooLargeError: the unpacked content is out of proportion, or has more than `most` bytes.
        OSError, EOFError, lzma.LZMAError, zlib.error: the file is damaged, or cannot be read.
    """
    content = path.read_bytes()
    if path.suffix not in _PACKED:
        return content
    pieces, size = [], 0
    with _PACKED[path.suffix](io.BytesIO(content)) as handle:
        while piece := handle.read(_PIECE):
            size += len(piece)
            require_growth(size, len(content), path)
            if most is not None and size > most:
                require_bytes(size, path)
            pieces.append(piece)
    return b"".join(pieces)


def require_zip_growth(archive: zipfile.ZipFile) -> None:
    """Check that the members of a zip file are in proportion to its size."""
    path = Path(archive.filename or "")
    require_growth(sum(one.file_size for one in archive.infolist()), path.stat().st_size, path)


MAX_TOML_BYTES: Final = 1 << 19
"""Bytes of a TOML file: Python reads about a million a second."""
_MOST_PARTS: Final = 9
_TEXTS: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)'
    r'|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+',
    re.DOTALL,
)
_CHAIN: Final = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says, in a time that its size bounds.

    Raises:
        ValueError: it is not TOML, too long, or nested too deeply.
        OSError: there is no such file, or it cannot be read.
    """
    with path.open("rb") as handle:
        return load_toml(handle.read(MAX_TOML_BYTES + 1))


def load_toml(content: bytes) -> dict[str, Any]:
    """Return what a TOML text says; see `read_toml`."""
    if len(content) > MAX_TOML_BYTES:
        raise ValueError(f"it must have at most {MAX_TOML_BYTES:,} bytes")
    text = content.decode("utf-8")
    # The time that the parser takes for a key grows with the square of its parts.
    if _CHAIN.search(_TEXTS.sub("s", text)):
        raise ValueError(f"its keys must have at most {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
