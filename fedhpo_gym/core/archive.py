"""Archives of arrays: an npz file and a JSON card that describes it, written and verified.

Tables, samples, surrogates, learned policies and meta-learning data are stored in this form.
The file name of the arrays contains their checksum, so new arrays never overwrite old ones.
Replacing the card is one atomic step that replaces both files; old arrays are deleted after it.
A reader opens the arrays when it reads the card. If they were deleted in between, it tries again.
The digest of a card covers all entries that affect results, and is the fingerprint of both files.
"""

import hashlib
import io
import json
import lzma
import math
import os
import re
import struct
import tempfile
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core import files
from fedhpo_gym.core.checks import FOREIGN_ERRORS, coerce
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    TooLargeError,
)

DIGEST_ENTRY = "card_sha256"
"""Entry of a card that holds the `card_digest` of all others."""
DESCRIPTIVE_ENTRIES: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            *("created", "hardware", "missing"),
            *("licence", "data_licence", "data_citation", "problem_citation"),
            *("build_command", "fit_command", "source_command", "made_by"),
        ),
        str,
    ),
    "software": Mapping[str, str],
    "label_frequencies": Mapping[str, float],
    "seed_label_frequencies": Mapping[str, Mapping[str, float]],
    "health": Mapping[str, Any],
    "objectives": Mapping[str, Any],
    "claimed_best": Mapping[str, Any],
    "survival": Mapping[str, Any],
}
"""Entries of cards that do not affect results, with their types: dates, machines, prose, commands
for messages, and figures that are computed from the results."""
UNDIGESTED_ENTRIES = frozenset({DIGEST_ENTRY, "arrays", *DESCRIPTIVE_ENTRIES})

EMBEDDED_FOLDER = Path(__file__).parents[1] / "stored" / "data"
"""Cards that travel with the package."""
SECOND_PACKAGE = "fedhpo_gym_data"
"""Package of the second distribution, which holds arrays only."""

_MAX_TRIES = 20
"""Attempts of a reader to open the arrays: each fails only if a writer replaced them meanwhile."""
_CHUNK_BYTES = 1 << 24
MODEL_GROWTH = 16
"""Largest ratio of the size of a model in memory to its stored size, which uses small integers."""


class StoredArrays:
    """The npz file that a card names. It is open since the card was read, as it may be replaced."""

    def __init__(self, path: Path, descriptor: int | None, size: int) -> None:
        self.path = path
        self._size = size
        self._descriptor = descriptor
        self._close = weakref.finalize(self, _close_descriptor, descriptor)

    def require_installed(self) -> None:
        """Check that the arrays of a card of this package are on this machine."""
        if (
            self._descriptor is None
            and self.path.parent == EMBEDDED_FOLDER
            and not files.path_exists(self.path)
        ):
            raise MissingDataError(
                f"the numbers of {self.path.name.partition('.')[0]} are in fedhpo-gym-data, which "
                "is not installed and on no index; in a checkout of fedhpo_gym, run `pip install "
                "./data`"
            )

    def read(
        self,
        sha256: str,
        repair: str,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        growth: int = 1,
    ) -> dict[str, NDArray[Any]]:
        """Return all arrays, after checking that the file is the one that its card describes."""
        files.max_bytes()  # an invalid environment variable must not be reported as damage
        self.require_installed()
        try:
            files.require_bytes(self._size, self.path)
            content = self._read_content()
            _require_checksum(content, sha256)
            arrays = read_npz(io.BytesIO(content), f"what is in {self.path}", shapes, growth)
            _require_numbers(arrays)
        except TooLargeError:
            raise
        except (OSError, ValueError) as error:
            raise DamagedDataError(
                f"{self.path} is damaged ({error}); delete it and run `{repair}`"
            ) from error
        self._descriptor = None
        self._close()
        return arrays

    def _read_content(self) -> bytes:
        descriptor = self._descriptor
        if descriptor is None:
            return _read_at_most(self.path, self._size)
        pieces: list[bytes] = []
        position = 0
        # `os.read` would move a file position that forked processes share.
        while position <= self._size and (piece := os.pread(descriptor, _CHUNK_BYTES, position)):
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)


def _require_numbers(arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            raise ValueError(f"{name!r} must hold numbers, got {array.dtype}")


def _close_descriptor(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _read_at_most(path: Path, size: int) -> bytes:
    """Return the content of a file; one byte more than `size` shows that it is longer."""
    with path.open("rb") as handle:
        return handle.read(size + 1)


def _require_checksum(content: bytes, sha256: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ValueError(f"sha256 {digest}, expected {sha256}")


def card_digest(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the entries of a card that affect results."""
    counted = {name: value for name, value in content.items() if name not in UNDIGESTED_ENTRIES}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def require_writable(folder: Path, option: str) -> None:
    """Create a folder, and check before a long computation that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{option} must be a folder where files can be written, got {folder} ({error.strerror})"
        ) from error


def require_writable_file(path: Path, option: str) -> None:
    """Create the folder of a file, and check before a long computation that it can be written."""
    require_writable(path.parent, f"{option}, without its last part,")
    if path.is_dir():
        raise InvalidArgumentError(
            f"{option} must be a file, got the folder {path}; name a file in it"
        )


def write_archive(
    folder: Path,
    stem: str,
    card: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    uncompressed: Container[str] = (),
) -> Path:
    """Write the arrays, then the card `<stem>.json` that names them; only then the archive exists.

    Equal content gives equal bytes, because members have no time stamp. Arrays that no card names
    any more are deleted.
    """
    content = _pack_arrays(arrays, uncompressed)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}.{digest[:16]}.npz"
    entries = _round_trip({**card, "arrays": name, "sha256": digest, "bytes": len(content)})
    entries[DIGEST_ENTRY] = card_digest(entries)
    path = folder / f"{stem}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with files.sole_writer(folder) as is_sole_writer:
        with files.new_file(folder / name) as file:
            file.write(content)
        files.write_text(path, json.dumps(entries, indent=1) + "\n")
        if is_sole_writer:  # else another writer may be about to write the card of such arrays
            _remove_unnamed(folder, stem, name)
    return path


def move_archive(card: Path, folder: Path) -> Path:
    """Move a card and its arrays to a folder of the same disk, and return the new path of the card.

    The card is moved last, and replaces one of the same name.
    """
    arrays = str(files.read_json(card)["arrays"])
    with files.sole_writer(folder) as is_sole_writer:
        card.with_name(arrays).replace(folder / arrays)
        card.replace(folder / card.name)
        if is_sole_writer:
            _remove_unnamed(folder, card.name.removesuffix(".json"), arrays)
    return folder / card.name


def add_to_card(card: Path, format_version: int, entries: Mapping[str, Any]) -> None:
    """Add entries that do not affect results to a card; its digest and its arrays stay."""
    if refused := sorted(entries.keys() - (UNDIGESTED_ENTRIES - {DIGEST_ENTRY, "arrays"})):
        raise InvalidArgumentError(
            f"`entries` must decide no answer, got {refused}; write the card and its arrays anew"
        )
    with files.sole_writer(card.parent):
        with checked_card(card, "stored", format_version, "make it again") as (content, _):
            extended = {**content, **_round_trip(entries)}
        files.write_text(card, json.dumps(extended, indent=1) + "\n")


def _round_trip(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card as its file will hold it: tuples become lists, and keys become strings."""
    entries: dict[str, Any] = json.loads(json.dumps(card))
    return entries


def _pack_arrays(arrays: Mapping[str, NDArray[Any]], uncompressed: Container[str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy")
            stored = name in uncompressed
            member.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_LZMA
            with archive.open(member, "w") as handle:
                np.lib.format.write_array(handle, arrays[name], allow_pickle=False)
    return buffer.getvalue()


def _remove_unnamed(folder: Path, stem: str, name: str) -> None:
    """Delete other arrays of a card, and temporary files of writers that were killed."""
    arrays = re.compile(re.escape(stem) + r"\.[0-9a-f]{16}\.npz")
    old = (path for path in folder.iterdir() if arrays.fullmatch(path.name) and path.name != name)
    for path in [*old, *files.leftover_files(folder, f"{stem}.")]:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def checked_card(
    card: Path, kind: str, format_version: int, repair: str
) -> Iterator[tuple[dict[str, Any], StoredArrays]]:
    """Yield a card and its arrays; errors in the body are reported as damage of the card."""
    files.max_bytes()  # an invalid environment variable must not be reported as damage
    try:
        yield _read_pair(card, format_version)
    except TooLargeError:
        raise
    except FOREIGN_ERRORS as error:
        raise DamagedDataError(
            f"{card} is not a {kind} card of format {format_version} ({error}); delete it and "
            f"{repair}"
        ) from error


def _read_pair(card: Path, format_version: int) -> tuple[dict[str, Any], StoredArrays]:
    for _ in range(_MAX_TRIES):
        content = _read_card(card, format_version)
        path, size = arrays_path(card, content), content["bytes"]
        with suppress(OSError):
            return content, StoredArrays(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), size)
    return content, StoredArrays(path, None, size)  # `StoredArrays.read` reports the reason


def _read_card(card: Path, format_version: int) -> dict[str, Any]:
    files.require_bytes(card.stat().st_size, card)
    content: dict[str, Any] = files.load_json(_read_at_most(card, files.max_bytes()), card)
    if type(content["format"]) is not int or content["format"] != format_version:
        raise ValueError(f"format {content['format']!r}")
    if DIGEST_ENTRY not in content:
        raise ValueError(f"it lacks {DIGEST_ENTRY!r}, so its content cannot be verified")
    if content[DIGEST_ENTRY] != (digest := card_digest(content)):
        raise ValueError(
            f"its content has digest {digest}, {DIGEST_ENTRY!r} is {content[DIGEST_ENTRY]!r:.80}"
        )
    if type(content["bytes"]) is not int or content["bytes"] < 0:
        raise ValueError(f"`bytes` must be the size of the arrays, got {content['bytes']!r}")
    for name in DESCRIPTIVE_ENTRIES.keys() & content.keys():
        coerce(name, content[name], DESCRIPTIVE_ENTRIES[name])
    return content


def arrays_path(card: Path, content: Mapping[str, Any]) -> Path:
    """Return the path of the arrays that a card describes."""
    name = content["arrays"]
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(".npz"):
        raise ValueError(f"`arrays` must be the name of an npz file beside the card, got {name!r}")
    beside, second = card.with_name(name), second_folder()
    if card.parent == EMBEDDED_FOLDER and second is not None and not files.path_exists(beside):
        return second / name
    return beside


@lru_cache(maxsize=1)
def second_folder() -> Path | None:
    """Return the folder of the second distribution: of this checkout, or installed, else None."""
    beside = Path(__file__).parents[2] / "data" / SECOND_PACKAGE
    if beside.is_dir():
        return beside
    spec = find_spec(SECOND_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


_KINDS = "biufU"
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_READ_BYTES = 1 << 12
"""Bytes per read. The lzma module unpacks that many packed bytes at once, whatever their size."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_READ_ERRORS = (
    ArithmeticError, EOFError, LookupError, MemoryError, SyntaxError, TypeError,
    RuntimeError,  # an encrypted member, an unknown method, a header nested too deeply
    lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_npz(
    file: IO[bytes],
    label: object,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    growth: int = 1,
) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file of numbers, truth values and strings; no pickle is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(infos) != len(archive.infolist()):
                raise ValueError("two arrays have the same name")
            if shapes is not None and set(infos) != set(shapes):
                raise ValueError(
                    f"it must hold the arrays {sorted(shapes)}, it holds {sorted(infos)}"
                )
            files.require_bytes(growth * sum(info.file_size for info in infos.values()), label)
            shapes = shapes or {}
            return {name: _read_array(archive, i, shapes.get(name)) for name, i in infos.items()}
    except FedHPOError:
        raise
    except _READ_ERRORS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _read_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, expected: tuple[int, ...] | None
) -> NDArray[Any]:
    """Return one array, after checking that its header and the zip directory declare one size."""
    if info.compress_type not in _COMPRESSIONS:
        raise ValueError(f"{info.filename!r} is compressed by method {info.compress_type}")
    with archive.open(info) as handle:
        version = np.lib.format.read_magic(handle)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename!r} has a header of version {version}")
        shape, fortran_order, dtype = _HEADERS[version](handle)
        if dtype.kind not in _KINDS or dtype.itemsize < 1 or min(shape, default=0) < 0:
            raise ValueError(f"{info.filename!r} declares {dtype} of shape {shape}")
        if handle.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"{info.filename!r} declares shape {shape} in {info.file_size} bytes")
        if expected is not None and shape != expected:
            name = info.filename.removesuffix(".npy")
            raise ValueError(f"array {name!r} has shape {shape}, expected {expected}")
        flat: NDArray[Any] = np.empty(math.prod(shape), dtype)
        unread = flat.view(np.uint8)
        while unread.size:
            piece = np.frombuffer(handle.read(min(_READ_BYTES, unread.size)), np.uint8)
            if not piece.size:
                raise EOFError(f"{info.filename!r} ends too early")
            unread[: piece.size] = piece
            unread = unread[piece.size :]
    return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)
