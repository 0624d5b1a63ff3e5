"""Arrays and the card that vouches for them: one npz and one JSON file, written and checked.

A card names its arrays by their checksum, so new arrays never take the place of old ones.
Replacing the card, in one step, replaces both; only then the old arrays are deleted. A reader
opens the arrays when it reads the card, and looks again if they were deleted in between.

The digest of the card, over all in it that decides what a number means, is the fingerprint of both.
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
"""Entry of a card: `card_digest` of all others."""
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
"""Entries of cards that decide no answer, with their types: dates, machines, prose, commands in
messages, and figures that are computed of the answers."""
UNDIGESTED_ENTRIES = frozenset({DIGEST_ENTRY, "arrays", *DESCRIPTIVE_ENTRIES})

EMBEDDED_FOLDER = Path(__file__).parents[1] / "stored" / "data"
"""Cards that travel with the package."""
SECOND_PACKAGE = "fedhpo_gym_data"
"""Package of the second distribution, which holds arrays only."""

_LOOKS = 20
"""How often a reader looks for arrays: every time in vain, a writer must have come in between."""
_PIECE = 1 << 24
MODEL_GROWTH = 16
"""How many times its stored bytes a model may take: small integers become large ones."""


class StoredArrays:
    """The npz file that a card names, open since the card was read: it may be replaced."""

    def __init__(self, path: Path, descriptor: int | None, size: int) -> None:
        self.path = path
        self._size = size
        self._descriptor = descriptor
        self._close = weakref.finalize(self, _close, descriptor)

    def require_installed(self) -> None:
        """Check that a card of the package has its arrays on this machine."""
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
        """Return all arrays, if the file is the one that its card describes."""
        files.max_bytes()  # a wrong variable is no damage
        self.require_installed()
        try:
            files.require_bytes(self._size, self.path)
            content = self._content()
            _check_sum(content, sha256)
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

    def _content(self) -> bytes:
        descriptor = self._descriptor
        if descriptor is None:
            return _up_to(self.path, self._size)
        pieces: list[bytes] = []
        position = 0
        # Not `read`, which moves a position that forked processes would share.
        while position <= self._size and (piece := os.pread(descriptor, _PIECE, position)):
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)


def _require_numbers(arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            raise ValueError(f"{name!r} must hold numbers, got {array.dtype}")


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _up_to(path: Path, size: int) -> bytes:
    """Return the content of a file, but not much more than so many bytes."""
    with path.open("rb") as handle:
        return handle.read(size + 1)


def _check_sum(content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"sha256 {found}, expected {sha256}")


def card_digest(content: Mapping[str, Any]) -> str:
    """Return the sha256 of what a card says, but for the entries that decide no answer."""
    counted = {name: value for name, value in content.items() if name not in UNDIGESTED_ENTRIES}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def require_writable(folder: Path, what: str) -> None:
    """Make a folder, and check before a long computation that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{what} must be a folder where files can be written, got {folder} ({error.strerror})"
        ) from error


def require_writable_file(path: Path, option: str) -> None:
    """Check before a long computation that a file can be written, and make its folder."""
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
    """Write the arrays, then `<stem>.json`, which names them; until the card is there, nothing is.

    The same content gives the same bytes: members carry no time stamp. What no card names any more
    is removed.
    """
    content = _archived(arrays, uncompressed)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}.{digest[:16]}.npz"
    said = _as_read({**card, "arrays": name, "sha256": digest, "bytes": len(content)})
    said[DIGEST_ENTRY] = card_digest(said)
    path = folder / f"{stem}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with files.sole_writer(folder) as alone:
        with files.new_file(folder / name) as file:
            file.write(content)
        files.write_text(path, json.dumps(said, indent=1) + "\n")
        if alone:  # else another writer may be about to name what no card names yet
            _remove_unnamed(folder, stem, name)
    return path


def move_archive(card: Path, folder: Path) -> Path:
    """Move a card and its arrays to a folder of the same disk, and return where the card is now.

    Until the card is there, which takes the place of another of its name, nothing is.
    """
    arrays = str(files.read_json(card)["arrays"])
    with files.sole_writer(folder) as alone:
        card.with_name(arrays).replace(folder / arrays)
        card.replace(folder / card.name)
        if alone:
            _remove_unnamed(folder, card.name.removesuffix(".json"), arrays)
    return folder / card.name


def add_to_card(card: Path, number: int, entries: Mapping[str, Any]) -> None:
    """Write entries that decide no answer onto a card; its digest and its arrays stay."""
    if refused := sorted(entries.keys() - (UNDIGESTED_ENTRIES - {DIGEST_ENTRY, "arrays"})):
        raise InvalidArgumentError(
            f"`entries` must decide no answer, got {refused}; write the card and its arrays anew"
        )
    with files.sole_writer(card.parent):
        with checked_card(card, "stored", number, "make it again") as (content, _):
            said = {**content, **_as_read(entries)}
        files.write_text(card, json.dumps(said, indent=1) + "\n")


def _as_read(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card as it comes back from its file: tuples are lists, and keys are strings."""
    said: dict[str, Any] = json.loads(json.dumps(card))
    return said


def _archived(arrays: Mapping[str, NDArray[Any]], uncompressed: Container[str]) -> bytes:
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
    """Remove other arrays of a card, and what killed writers left."""
    arrays = re.compile(re.escape(stem) + r"\.[0-9a-f]{16}\.npz")
    old = (path for path in folder.iterdir() if arrays.fullmatch(path.name) and path.name != name)
    for path in [*old, *files.leftover_files(folder, f"{stem}.")]:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def checked_card(
    card: Path, kind: str, number: int, repair: str
) -> Iterator[tuple[dict[str, Any], StoredArrays]]:
    """Give what a card says, and its arrays; what goes wrong in the body is damage of the card."""
    files.max_bytes()  # a wrong variable is no damage
    try:
        yield _read_pair(card, number)
    except TooLargeError:
        raise
    except FOREIGN_ERRORS as error:
        raise DamagedDataError(
            f"{card} is not a {kind} card of format {number} ({error}); delete it and {repair}"
        ) from error


def _read_pair(card: Path, number: int) -> tuple[dict[str, Any], StoredArrays]:
    for _ in range(_LOOKS):
        content = _read_card(card, number)
        path, size = arrays_path(card, content), content["bytes"]
        with suppress(OSError):
            return content, StoredArrays(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), size)
    return content, StoredArrays(path, None, size)  # reading them says what is wrong


def _read_card(card: Path, number: int) -> dict[str, Any]:
    files.require_bytes(card.stat().st_size, card)
    content: dict[str, Any] = files.load_json(_up_to(card, files.max_bytes()), card)
    if type(content["format"]) is not int or content["format"] != number:
        raise ValueError(f"format {content['format']!r}")
    if DIGEST_ENTRY not in content:
        raise ValueError(f"it lacks {DIGEST_ENTRY!r}: nothing vouches for what it says")
    if content[DIGEST_ENTRY] != (found := card_digest(content)):
        raise ValueError(
            f"its content has digest {found}, {DIGEST_ENTRY!r} is {content[DIGEST_ENTRY]!r:.80}"
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
    """Return where the second distribution is: in this checkout, or installed; None for nowhere."""
    beside = Path(__file__).parents[2] / "data" / SECOND_PACKAGE
    if beside.is_dir():
        return beside
    found = find_spec(SECOND_PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent


_KINDS = "biufU"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_READ_AT_ONCE = 1 << 12
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


def read_npz(
    file: IO[bytes],
    what: object,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    growth: int = 1,
) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file of numbers, truth values and strings."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(infos) != len(archive.infolist()):
                raise ValueError("two arrays have the same name")
            if shapes is not None and set(infos) != set(shapes):
                raise ValueError(
                    f"it must hold the arrays {sorted(shapes)}, it holds {sorted(infos)}"
                )
            files.require_bytes(growth * sum(info.file_size for info in infos.values()), what)
            return {n: _array(archive, info, (shapes or {}).get(n)) for n, info in infos.items()}
    except FedHPOError:
        raise
    except _RAISED as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, expected: tuple[int, ...] | None
) -> NDArray[Any]:
    """Read an array, whose header must declare as many bytes as the directory does."""
    if info.compress_type not in _METHODS:
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
        room = flat.view(np.uint8)
        while room.size:
            piece = np.frombuffer(handle.read(min(_READ_AT_ONCE, room.size)), np.uint8)
            if not piece.size:
                raise EOFError(f"{info.filename!r} ends too early")
            room[: piece.size] = piece
            room = room[piece.size :]
    return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)
