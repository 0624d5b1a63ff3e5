"""The data folder: where it is, and arrays written to it whole or not at all."""

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


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_dependency(
            "reading this data set", f"the module {module!r}", extra
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder for data, or for what is computed of them."""
    require_writable(folder, f"`{ENV_VAR}` or `XDG_CACHE_HOME` (else ~/.cache)")


def find(*names: str) -> Path | None:
    """Return the first of these paths, below the data folder, that exists; None if none does."""
    return next((path for name in names if path_exists(path := data_folder() / name)), None)


def checksum(path: Path) -> str:
    """Return the sha256 of a file, read in pieces."""
    with path.open("rb") as handle:
        return digest_of(handle)


def digest_of(handle: BufferedIOBase) -> str:
    """Return the sha256 of an open file, from its start."""
    handle.seek(0)
    return hashlib.file_digest(handle, "sha256").hexdigest()


def read_checksum(path: Path) -> str | None:
    """Return what a file with a checksum says, or None where there is no such file."""
    if not path_exists(path):
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def verify(path: Path, sha256: str, repair: str) -> None:
    """Compare a file with its checksum."""
    found = checksum(path)
    if found != sha256:
        raise DamagedDataError(f"{path} has sha256 {found}, expected {sha256}; {again(repair)}")


def derived(name: str, files: Sequence[Path], make: Maker, repair: str) -> dict[str, NDArray[Any]]:
    """Return arrays computed from files, computed again only when a file has changed."""
    stats = ((path.resolve(), path.stat()) for path in files)
    stamp = "\n".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)
    digest = hashlib.sha256(stamp.encode("utf-8")).hexdigest()[:16]
    path = cache_folder("derived") / f"{name}-{digest}.npz"  # data may be read-only
    if not path_exists(path):
        make_folder(path.parent)
        with reading(_named(files), again(repair)):
            arrays = make()
        write_arrays(path, arrays)
    return read_arrays(path, repair)


def _named(files: Sequence[Path]) -> str:
    others = f" or one of the {len(files) - 1} files read with it" if len(files) > 1 else ""
    return f"{files[0]}{others}" if files else "a folder without files"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as .npz, always the same bytes, and its sha256; nothing is left half written."""
    make_folder(path.parent)
    with new_file(path) as file:
        with zipfile.ZipFile(file, "w", compresslevel=1) as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")
                member.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(member, "w", force_zip64=True) as handle:
                    np.lib.format.write_array(handle, np.asarray(array), allow_pickle=False)
        write_text(path.with_suffix(".sha256"), digest_of(file) + "\n")


def read_arrays(path: Path, repair: str) -> dict[str, NDArray[Any]]:
    """Read arrays written by `write_arrays`, checking the checksum."""
    verify(path, read_checksum(path.with_suffix(".sha256")) or "missing", repair)
    with reading(path, again(repair)):
        return load_npz(path)


def columns(
    arrays: Mapping[str, NDArray[Any]], wanted: Mapping[str, tuple[str, int]]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names, of one length, each with its type and number of axes."""
    found = {}
    for name, (kind, axes) in wanted.items():
        array = arrays.get(name)
        fits = array is not None and array.ndim == axes and np.can_cast(array.dtype, kind, "safe")
        if array is None or not fits or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            form = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InvalidArgumentError(
                f"`{name}` must be finite {kind} with {axes} axes, got {form}"
            )
        found[name] = array.astype(kind)
    if len({len(array) for array in found.values()}) > 1:
        raise InvalidArgumentError(f"{', '.join(found)} must have one length")
    return found


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file, which is closed again even when it is none."""
    with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


TIMEOUT_S = 60
# Only https: no handler for plain http, files or ftp, not even after a redirection.
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
def fetched(url: str, path: Path, sha256: str | None, repair: str) -> Iterator[Path]:
    """Give a verified file, downloaded when it is not there yet, to a body that reads it.

    A file of unknown checksum gets one when the body has read it; a download that cannot be read
    is deleted.
    """
    beside = _checksum_of(path)
    new = not path_exists(path)
    if new:
        _download(url, path, sha256, repair)
    expected = sha256 or read_checksum(beside)
    if expected is not None:
        verify(path, expected, repair)
    try:
        yield path
    except DamagedDataError:
        if new:
            path.unlink(missing_ok=True)
        raise
    if expected is None and os.access(path.parent, os.W_OK):
        write_text(beside, checksum(path) + "\n")


def fetch(url: str, path: Path, sha256: str, repair: str) -> Path:
    """Return a file whose checksum is known, downloaded when it is not there yet."""
    with fetched(url, path, sha256, repair):
        return path


def _checksum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _download(url: str, path: Path, sha256: str | None, repair: str) -> None:
    make_folder(path.parent)
    _checksum_of(path).unlink(missing_ok=True)
    try:
        with new_file(path) as part:
            _receive(url, part)
            if sha256 is not None and (found := digest_of(part)) != sha256:
                raise DamagedDataError(
                    f"what {url} sent has sha256 {found}, expected {sha256}; it was not kept. Run "
                    f"`{repair}` again; if that does not help, the publisher has changed the file"
                )
    except (OSError, HTTPException, EOFError) as error:
        raise MissingDataError(
            f"{url} could not be downloaded: {error}. Check the network and run `{repair}`, or "
            f"put the file at {path}"
        ) from error


def _receive(url: str, part: BufferedIOBase) -> None:
    with open_url(url) as answer:
        shutil.copyfileobj(answer, part, 1 << 20)
        promised = answer.headers.get("Content-Length")
    received = part.tell()
    if promised is not None and received != int(promised):
        raise EOFError(f"{received} of {promised} bytes came")


def open_url(url: str) -> Any:
    """Open an https address; any other kind is refused with an `OSError`."""
    answer = _OPENER.open(url, timeout=TIMEOUT_S)
    if answer is None:
        raise OSError("only https addresses are opened")
    return answer


_LONGEST = 200
"""Characters of a library's own message that are passed on."""


@contextmanager
def reading(what: object, repair: str) -> Iterator[None]:
    """Say that a file is damaged when what is done in the `with` statement fails because of it.

    The body only reads: whatever its libraries raise, memory that an absurd size asks for and
    nesting too deep included, is then due to the content. What the operating system says about
    permissions, disks or a missing file goes on unchanged, and so do this package's own errors.
    """
    try:
        yield
    except Exception as error:
        if not _about_the_content(error):
            raise
        raise DamagedDataError(f"{what} is damaged ({_words(error)}); {repair}") from error


def _about_the_content(error: Exception) -> bool:
    if isinstance(error, FedHPOError):
        return isinstance(error, InvalidArgumentError)
    # Libraries raise OSError about content without a number, or as an impossible position.
    return not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)


def _words(error: Exception) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {' '.join(str(error).split())[:_LONGEST]}"
    except Exception:  # noqa: BLE001 - some libraries fail to word their own errors
        return kind


def again(repair: str) -> str:
    """Return the usual clause: delete the file and run a command."""
    return f"delete it and run `{repair}`"
