"""The data folder: where it is, and arrays written to it whole or not at all."""

from __future__ import annotations

import hashlib
import importlib
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.archive import require_writable
from fedhpo_gym.datasets.reading import again, reading
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, missing_dependency
from fedhpo_gym.files import new_file, write_text

ENV_VAR = "FEDHPO_GYM_DATA"
Maker: TypeAlias = Callable[[], Mapping[str, NDArray[Any]]]


def data_folder() -> Path:
    """Return the folder with training data: `FEDHPO_GYM_DATA`, else the user's cache folder."""
    if ENV_VAR in os.environ:
        return Path(os.environ[ENV_VAR]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fedhpo_gym" / "datasets"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingDependencyError: the module is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_dependency(
            "reading this data set", f"the module {module!r}", extra
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder for data, inside `data_folder` or `derived_folder`.

    Raises:
        InvalidArgumentError: nothing can be written there; names what chooses the folder.
    """
    require_writable(folder, f"`{ENV_VAR}` or `XDG_CACHE_HOME` (else ~/.cache)")


def find(*names: str) -> Path | None:
    """Return the first of these paths, below the data folder, that exists; None if none does."""
    paths = (data_folder() / name for name in names)
    return next((path for path in paths if path.exists()), None)


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
    if not path.exists():
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def verify(path: Path, sha256: str, repair: str) -> None:
    """Compare a file with its checksum.

    Raises:
        DamagedDataError: it has another one; names the repair command.
    """
    found = checksum(path)
    if found != sha256:
        raise DamagedDataError(f"{path} has sha256 {found}, expected {sha256}; {again(repair)}")


def derived_folder() -> Path:
    """Return the folder for what is computed from data files: always in the user's cache.

    A data folder may be shared or read-only, so nothing derived from it is written into it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fedhpo_gym" / "derived"


def derived(name: str, files: Sequence[Path], make: Maker, repair: str) -> dict[str, NDArray[Any]]:
    """Return arrays computed from files, computed again only when a file has changed.

    Args:
        name: what the arrays are, for the name of the cached file.
        files: what they are computed from; recognised by path, size and time of change.
        make: computes them.
        repair: the command to name when a file, or the cached one, is damaged.

    Raises:
        DamagedDataError: the files cannot be read, or the cached one has changed.
    """
    stats = ((path.resolve(), path.stat()) for path in files)
    stamp = "\n".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)
    digest = hashlib.sha256(stamp.encode("utf-8")).hexdigest()[:16]
    path = derived_folder() / f"{name}-{digest}.npz"
    if not path.exists():
        make_folder(path.parent)
        with reading(_named(files), again(repair)):
            arrays = make()
        write_arrays(path, arrays)
    return read_arrays(path, repair)


def _named(files: Sequence[Path]) -> str:
    others = f" or one of the {len(files) - 1} files read with it" if len(files) > 1 else ""
    return f"{files[0]}{others}" if files else "a folder without files"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as .npz and, beside it, its sha256; a crash leaves nothing half written.

    The same arrays give the same bytes, so that processes writing at once do not disagree.
    """
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
    """Read arrays written by `write_arrays`, checking the checksum.

    Raises:
        DamagedDataError: the checksum is missing or wrong, or it belongs to something else than
            arrays; names the repair command.
    """
    verify(path, read_checksum(path.with_suffix(".sha256")) or "missing", repair)
    with reading(path, again(repair)):
        return load_npz(path)


def columns(
    arrays: Mapping[str, NDArray[Any]], wanted: Mapping[str, tuple[str, int]]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names, of one length, each with its type and number of axes.

    Args:
        arrays: the arrays of a file.
        wanted: name of a type of numpy, and number of axes, by name.

    Raises:
        InvalidArgumentError: an array is missing, does not fit, or holds what is not finite.
    """
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
