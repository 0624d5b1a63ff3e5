"""Reading npz files of any origin: what they declare is checked before anything is unpacked."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.core.files import require_bytes

_KINDS = "biufU"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_PIECE = 1 << 12
"""Bytes per read: the lzma module unpacks as many packed ones at once, however much they become."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_RAISED = (
    ArithmeticError, EOFError, LookupError, MemoryError, SyntaxError, TypeError,
    RuntimeError,  # an encrypted member, an unknown method, a header nested too deeply
    lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class _Member:
    """What the header of an array declares."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    start: int


def read_npz(
    file: IO[bytes],
    what: object,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    growth: int = 1,
) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file of numbers, truth values and strings."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive, what, shapes, growth)
    except FedHPOError:
        raise
    except _RAISED as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _read(
    archive: zipfile.ZipFile,
    what: object,
    shapes: Mapping[str, tuple[int, ...]] | None,
    growth: int,
) -> dict[str, NDArray[Any]]:
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()):
        raise ValueError("two arrays have the same name")
    if shapes is not None and set(infos) != set(shapes):
        raise ValueError(f"it must hold the arrays {sorted(shapes)}, it holds {sorted(infos)}")
    require_bytes(growth * sum(info.file_size for info in infos.values()), what)
    members = {name: _declared(archive, info) for name, info in infos.items()}
    for name, shape in (shapes or {}).items():
        if members[name].shape != shape:
            raise ValueError(f"array {name!r} has shape {members[name].shape}, expected {shape}")
    return {name: _array(archive, member) for name, member in members.items()}


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    """Read the header of an array; it must declare as many bytes as the directory does."""
    if info.compress_type not in _METHODS:
        raise ValueError(f"{info.filename!r} is compressed by method {info.compress_type}")
    with archive.open(info) as handle:
        version = np.lib.format.read_magic(handle)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename!r} has a header of version {version}")
        shape, fortran_order, dtype = _HEADERS[version](handle)
        start = handle.tell()
    if dtype.kind not in _KINDS or dtype.itemsize < 1 or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename!r} declares {dtype} of shape {shape}")
    if start + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.filename!r} declares shape {shape} in {info.file_size} bytes")
    return _Member(info, shape, fortran_order, dtype, start)


def _array(archive: zipfile.ZipFile, member: _Member) -> NDArray[Any]:
    flat: NDArray[Any] = np.empty(math.prod(member.shape), member.dtype)
    room = flat.view(np.uint8)
    with archive.open(member.info) as handle:
        if len(handle.read(member.start)) < member.start:
            raise EOFError(f"{member.info.filename!r} ends in its header")
        while room.size:
            piece = np.frombuffer(handle.read(min(_PIECE, room.size)), np.uint8)
            if not piece.size:
                raise EOFError(f"{member.info.filename!r} ends too early")
            room[: piece.size] = piece
            room = room[piece.size :]
    if member.fortran_order:
        return flat.reshape(member.shape[::-1]).T
    return flat.reshape(member.shape)
