"""The data folder: its location, verified downloads, and a cache of arrays derived from files.

All sources of data sets read their files through these functions. Every file is verified by its
sha256: a documented one, or the one that was recorded at the first successful read. Arrays that
take long to compute are stored as .npz in the cache and computed anew if a file changes. Errors of
libraries about the content of files are reported as `DamagedDataError` with a repair command.
"""

import errno
import hashlib
import importlib
import os
import shutil
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    missing_dependency,
)
from fedhpo_gym.core.files import cache_folder, expand_home, new_file, path_exists, write_text

ENV_VAR = "FEDHPO_GYM_DATA"
Maker: TypeAlias = Callable[[], Mapping[str, NDArray[Any]]]


def data_folder() -> Path:
    """Return the folder with training data: `FEDHPO_GYM_DATA`, else the user's cache folder."""
    if ENV_VAR in os.environ:
        return expand_home(os.environ[ENV_VAR])
    return cache_folder("datasets")


def import_optional(module: str, extra: str) -> ModuleType:
    """Import an optional dependency."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_dependency(
            "reading this data set", f"the module {module!r}", extra
        ) from error


def make_folder(folder: Path) -> None:
    """Create a folder for data or derived arrays."""
    require_writable(folder, f"`{ENV_VAR}` or `XDG_CACHE_HOME` (else ~/.cache)")


def find_data(*names: str) -> Path | None:
    """Return the first existing one of these paths below the data folder; None if none exists."""
    return next((path for name in names if path_exists(path := data_folder() / name)), None)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as handle:
        return handle_sha256(handle)


def handle_sha256(handle: BufferedIOBase) -> str:
    """Return the sha256 of an open file, from its start."""
    handle.seek(0)
    return hashlib.file_digest(handle, "sha256").hexdigest()


def read_checksum(path: Path) -> str | None:
    """Return the checksum in a file, or None if there is no such file."""
    if not path_exists(path):
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def verify(path: Path, sha256: str, repair: str) -> None:
    """Compare a file with its checksum."""
    digest = file_sha256(path)
    if digest != sha256:
        raise DamagedDataError(
            f"{path} has sha256 {digest}, expected {sha256}; {repair_advice(repair)}"
        )


def derive_arrays(
    name: str, files: Sequence[Path], make: Maker, repair: str
) -> dict[str, NDArray[Any]]:
    """Return arrays that `make` computes from files; they are cached until a file changes."""
    stats = ((path.resolve(), path.stat()) for path in files)
    stamp = "\n".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)
    digest = hashlib.sha256(stamp.encode("utf-8")).hexdigest()[:16]
    path = cache_folder("derived") / f"{name}-{digest}.npz"  # the data folder may be read-only
    if not path_exists(path):
        make_folder(path.parent)
        with reporting_damage(_describe_files(files), repair_advice(repair)):
            arrays = make()
        write_arrays(path, arrays)
    return read_arrays(path, repair)


def _describe_files(files: Sequence[Path]) -> str:
    others = f" or one of the {len(files) - 1} files read with it" if len(files) > 1 else ""
    return f"{files[0]}{others}" if files else "a folder without files"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays atomically as .npz of reproducible bytes, and its sha256."""
    make_folder(path.parent)
    with new_file(path) as file:
        with zipfile.ZipFile(file, "w", compresslevel=1) as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")
                member.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(member, "w", force_zip64=True) as handle:
                    np.lib.format.write_array(handle, np.asarray(array), allow_pickle=False)
        write_text(path.with_suffix(".sha256"), handle_sha256(file) + "\n")


def read_arrays(path: Path, repair: str) -> dict[str, NDArray[Any]]:
    """Read arrays written by `write_arrays`, checking the checksum."""
    verify(path, read_checksum(path.with_suffix(".sha256")) or "missing", repair)
    with reporting_damage(path, repair_advice(repair)):
        return load_npz(path)


def check_columns(
    arrays: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[str, int]]
) -> dict[str, NDArray[Any]]:
    """Return the expected arrays, after checking their lengths, dtypes and numbers of axes."""
    checked = {}
    for name, (dtype, axes) in expected.items():
        array = arrays.get(name)
        fits = array is not None and array.ndim == axes and np.can_cast(array.dtype, dtype, "safe")
        if array is None or not fits or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            actual = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InvalidArgumentError(
                f"`{name}` must be finite {dtype} with {axes} axes, got {actual}"
            )
        checked[name] = array.astype(dtype)
    if len({len(array) for array in checked.values()}) > 1:
        raise InvalidArgumentError(f"{', '.join(checked)} must have one length")
    return checked


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file, which is closed also after an error."""
    with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


TIMEOUT_S = 60
# Only https: handlers of http, files and ftp are missing, so redirections to them fail, too.
_OPENER = urllib.request.OpenerDirector()
for _handler in (
    urllib.request.ProxyHandler(),
    urllib.request.HTTPSHandler(),
    urllib.request.HTTPRedirectHandler(),
    urllib.request.HTTPDefaultErrorHandler(),
    urllib.request.HTTPErrorProcessor(),
    urllib.request.UnknownHandler(),
):
    _OPENER.add_handler(_handler)


@contextmanager
def verified_file(url: str, path: Path, sha256: str | None, repair: str) -> Iterator[Path]:
    """Yield a verified file to a body that reads it, and download it first if it is missing.

    If its checksum is unknown, it is recorded after the body has read the file. A download that
    cannot be read is deleted.
    """
    checksum_path = _checksum_path(path)
    new = not path_exists(path)
    if new:
        _download(url, path, sha256, repair)
    expected = sha256 or read_checksum(checksum_path)
    if expected is not None:
        verify(path, expected, repair)
    try:
        yield path
    except DamagedDataError:
        if new:
            path.unlink(missing_ok=True)
        raise
    if expected is None and os.access(path.parent, os.W_OK):
        write_text(checksum_path, file_sha256(path) + "\n")


def fetch_file(url: str, path: Path, sha256: str, repair: str) -> Path:
    """Return a file of known checksum, and download it first if it is missing."""
    with verified_file(url, path, sha256, repair):
        return path


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _download(url: str, path: Path, sha256: str | None, repair: str) -> None:
    make_folder(path.parent)
    _checksum_path(path).unlink(missing_ok=True)
    try:
        with new_file(path) as file:
            _receive(url, file)
            if sha256 is not None and (digest := handle_sha256(file)) != sha256:
                raise DamagedDataError(
                    f"the content of {url} has sha256 {digest}, expected {sha256}; it was deleted. "
                    f"Run `{repair}` again; if that does not help, the publisher has changed the "
                    "file"
                )
    except (OSError, HTTPException, EOFError) as error:
        raise MissingDataError(
            f"{url} could not be downloaded: {error}. Check the network and run `{repair}`, or "
            f"put the file at {path}"
        ) from error


def _receive(url: str, file: BufferedIOBase) -> None:
    with open_url(url) as answer:
        shutil.copyfileobj(answer, file, 1 << 20)
        promised = answer.headers.get("Content-Length")
    received = file.tell()
    if promised is not None and received != int(promised):
        raise EOFError(f"{received} of {promised} bytes were received")


def open_url(url: str) -> Any:
    """Open an https address; any other kind raises an `OSError`."""
    answer = _OPENER.open(url, timeout=TIMEOUT_S)
    if answer is None:
        raise OSError("only https addresses are opened")
    return answer


_MAX_MESSAGE = 200
"""Longest message of a library that is included in ours."""


@contextmanager
def reporting_damage(label: object, repair: str) -> Iterator[None]:
    """Raise `DamagedDataError` if the body of the `with` statement fails because of its file.

    The body must only read. All errors of its libraries, including a lack of memory for an absurd
    size and too deep nesting, are then caused by the content. Errors of the operating system about
    permissions, disks or missing files, and errors of this package, are not changed.
    """
    try:
        yield
    except Exception as error:
        if not _is_about_content(error):
            raise
        raise DamagedDataError(
            f"{label} is damaged ({_describe_error(error)}); {repair}"
        ) from error


def _is_about_content(error: Exception) -> bool:
    if isinstance(error, FedHPOError):
        return isinstance(error, InvalidArgumentError)
    # About content, libraries raise OSError without an errno, or with that of a wrong position.
    return not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)


def _describe_error(error: Exception) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {' '.join(str(error).split())[:_MAX_MESSAGE]}"
    except Exception:  # noqa: BLE001 - `str` of some errors fails
        return kind


def repair_advice(repair: str) -> str:
    """Return advice for error messages: delete the file and run a command."""
    return f"delete it and run `{repair}`"
