"""Atomic writing of files and folders, and reading of JSON, TOML and packed files within limits.

Every part of the package that writes or reads files uses it. A new file is complete or absent,
whatever ends its writer: it is written under a random temporary name in the same folder, and is
renamed once it is complete and on the disk. Two writers never share a temporary name, and a link
that was put there beforehand is not followed. Only a killed process leaves a `.part` file behind.
Readers check the size that a file would take in memory before they unpack or decode it.
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
_KEPT_CHARS = 40
"""Characters of the real name in a temporary one: names are limited to 255 bytes."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk, which do not name the file; errors of a network have other numbers."""


@contextmanager
def new_file(path: Path) -> Iterator[BufferedRandom]:
    """Yield an empty binary file, which gets its real name if the body ends without an error."""
    temporary = _temporary_path(path)
    # An interrupt may arrive as soon as the file exists, so it is opened inside this `try`.
    try:
        with _name_final_path(path):
            descriptor = os.open(
                temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
        with naming_file(path), os.fdopen(descriptor, "w+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        with _name_final_path(path):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the path to errors of writing a file, because the error of a full disk lacks it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a small text file in UTF-8."""
    with new_file(path) as handle:
        handle.write(text.encode("utf-8"))


@contextmanager
def new_text(path: Path, text: str) -> Iterator[None]:
    """Write a text to the disk, which gets its real name if the body ends without an error."""
    with new_file(path) as handle:
        handle.write(text.encode("utf-8"))
        handle.flush()
        os.fsync(handle.fileno())
        yield


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder, which gets its real name if the body ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    with _name_final_path(path):
        temporary.mkdir()
    try:
        yield temporary
        with _name_final_path(path):
            temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Hold an exclusive lock on a folder in the body, after waiting for other holders.

    Yields whether the folder is locked: some file systems, and systems, cannot lock a folder.
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
    """Return the temporary files for names with a beginning; only the sole writer may call it."""
    return list(folder.glob(f".{glob.escape(beginning[:_KEPT_CHARS])}*{SUFFIX}"))


@contextmanager
def _name_final_path(path: Path) -> Iterator[None]:
    """Replace the temporary path in errors by the real one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name[:_KEPT_CHARS]}.{secrets.token_hex(8)}{SUFFIX}")


def _sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


MAX_BYTES_VARIABLE = "FEDHPO_GYM_MAX_BYTES"
DEFAULT_MAX_BYTES = 1 << 29
"""512 MiB: all arrays of a file, uncompressed, or the text of a json file."""

_VALUE_BYTES, _CONTAINER_BYTES = 64, 256
"""Approximate bytes of a number or a short string in a list, and of a list or a dictionary."""
_MAX_DIGITS = 18


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: below `XDG_CACHE_HOME`, else below ~/.cache."""
    return expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedhpo_gym" / name


def expand_home(folder: str) -> Path:
    """Return a folder with its ~ expanded; one that cannot exist if the user has no home."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:  # a container's user without an entry in /etc/passwd
        return Path(os.devnull, folder.lstrip("~/"))


def path_exists(path: Path) -> bool:
    """Return whether a file or folder exists and can be reached.

    `Path.exists` raises for a name that is too long and below a folder without permission, such as
    the home of another user. This function returns False there.
    """
    return os.path.exists(path)  # noqa: PTH110


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the sorted paths in a folder that match a pattern; none if it cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def max_bytes() -> int:
    """Return the largest size of a file's content: `FEDHPO_GYM_MAX_BYTES`, else 512 MiB."""
    text = os.environ.get(MAX_BYTES_VARIABLE, "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    limit = int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0
    if limit < 1:
        raise InvalidArgumentError(
            f"`{MAX_BYTES_VARIABLE}` must be a positive number of bytes, of at most {_MAX_DIGITS} "
            f"digits, got {text[:40]!r}"
        )
    return limit


def require_bytes(size: int, label: object) -> None:
    """Check that content of this size may be read."""
    limit = max_bytes()
    if size > limit:
        raise TooLargeError(
            f"{label} would take {size:,} bytes, and {limit:,} may be read; if it is genuine, set "
            f"the environment variable `{MAX_BYTES_VARIABLE}` to {size} or more"
        )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, if it is within the size limit."""
    require_bytes(path.stat().st_size, path)
    return load_json(path.read_bytes(), path)


def load_json(
    content: bytes,
    label: object,
    share: int = 1,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return the content of a JSON text, if the text and its values are within the size limit."""
    require_bytes(len(content), label)
    containers = content.count(b"[") + content.count(b"{")
    values = content.count(b",") + containers
    require_bytes(
        (_VALUE_BYTES * values + _CONTAINER_BYTES * containers) // share, f"{label}, decoded,"
    )
    try:
        return json.loads(content, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


GROWTH: Final = 64
"""Largest ratio of unpacked to packed size. Text packs by a factor of about 3 to 20."""
_OPENERS: Final[Mapping[str, Callable[[io.BytesIO], Any]]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open,
}  # fmt: skip
_CHUNK_BYTES: Final = 1 << 20


def growth_limit(stored: int) -> int:
    """Return the largest unpacked size of a file: `GROWTH` times its size, or 64 MiB."""
    return max(max_bytes() // 8, GROWTH * stored)


def require_growth(size: int, stored: int, label: object) -> None:
    """Check that unpacked or decoded data are in proportion to their file of `stored` bytes."""
    if size > (limit := growth_limit(stored)):
        raise TooLargeError(
            f"{label} of {stored:,} bytes would take {size:,} bytes or more, and {limit:,} may be "
            f"read; if it is genuine, set the environment variable `{MAX_BYTES_VARIABLE}` to "
            f"{8 * size} or more"
        )


def read_unpacked(path: Path | zipfile.Path, max_size: int | None = None) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz, .bz2 or .xz.

    Raises:
        TooLargeError: the unpacked content is too large for its file, or exceeds `max_size` bytes.
        OSError, EOFError, lzma.LZMAError, zlib.error: the file is damaged, or cannot be read.
    """
    content = path.read_bytes()
    if path.suffix not in _OPENERS:
        return content
    pieces, size = [], 0
    with _OPENERS[path.suffix](io.BytesIO(content)) as handle:
        while piece := handle.read(_CHUNK_BYTES):
            size += len(piece)
            require_growth(size, len(content), path)
            if max_size is not None and size > max_size:
                require_bytes(size, path)
            pieces.append(piece)
    return b"".join(pieces)


def require_zip_growth(archive: zipfile.ZipFile) -> None:
    """Check that the members of a zip file are in proportion to its size."""
    path = Path(archive.filename or "")
    require_growth(
        sum(member.file_size for member in archive.infolist()), path.stat().st_size, path
    )


MAX_TOML_BYTES: Final = 1 << 19
"""Largest size of a TOML file in bytes: Python parses about a million a second."""
_MAX_KEY_PARTS: Final = 9
_STRINGS_AND_COMMENTS: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)'
    r'|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+',
    re.DOTALL,
)
_LONG_KEY: Final = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MAX_KEY_PARTS}}}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, in time that is linear in its size.

    Raises:
        ValueError: it is not TOML, too long, or nested too deeply.
        OSError: there is no such file, or it cannot be read.
    """
    with path.open("rb") as handle:
        return load_toml(handle.read(MAX_TOML_BYTES + 1))


def load_toml(content: bytes) -> dict[str, Any]:
    """Return the content of a TOML text; see `read_toml`."""
    if len(content) > MAX_TOML_BYTES:
        raise ValueError(f"it must have at most {MAX_TOML_BYTES:,} bytes")
    text = content.decode("utf-8")
    # The time of the parser grows with the square of the number of parts of a dotted key.
    if _LONG_KEY.search(_STRINGS_AND_COMMENTS.sub("s", text)):
        raise ValueError(f"its keys must have at most {_MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
