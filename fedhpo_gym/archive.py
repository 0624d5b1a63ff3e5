"""Arrays and the card that vouches for them: one npz and one JSON file, written and checked.

Shared by everything the package stores: tables, samples, surrogates and learned policies.
`numpy.load` opens the arrays without running code.

A card names its arrays by their checksum, so new arrays never take the place of old ones.
Replacing the card, in one step, replaces both; only then the old arrays are deleted. A reader
opens the arrays when it reads the card, and looks again if they were deleted in between. A card
that names no arrays is of the first layout: they are beside it, under its own name.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.files import left_over, new_file, sole_writer, write_text

_LOOKS = 20
"""How often a reader looks for arrays: every time in vain, a writer must have come in between."""
_PIECE = 1 << 24


class StoredArrays:
    """The file of arrays that a card names, open since the card was read.

    Who has read a card gets its arrays, even if the pair is replaced before they are asked for.

    Attributes:
        path: the npz file.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        """Take the file.

        Args:
            path: the npz file.
            descriptor: the open file, which is closed from here; None if it could not be opened.
        """
        self.path = path
        self._descriptor = descriptor
        self._close = weakref.finalize(self, _close, descriptor)

    def read(self, sha256: str, repair: str) -> dict[str, NDArray[Any]]:
        """Return all arrays, if the checksum of the file is as its card states.

        Args:
            sha256: checksum from the card.
            repair: command that makes the file again.

        Raises:
            DamagedDataError: the file is missing or not the one the card describes.
        """
        try:
            content = self._content()
            _check_sum(content, sha256)
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, zipfile.BadZipFile, lzma.LZMAError) as error:
            raise DamagedDataError(
                f"{self.path} is damaged ({error}); delete it and run `{repair}`"
            ) from error
        self._descriptor = None
        self._close()
        return arrays

    def _content(self) -> bytes:
        if self._descriptor is None:
            return self.path.read_bytes()
        pieces: list[bytes] = []
        position = 0
        # Not `read`, which moves a position that forked processes would share.
        while piece := os.pread(self._descriptor, _PIECE, position):
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _check_sum(content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"sha256 {found}, expected {sha256}")


def require_writable(folder: Path, what: str) -> None:
    """Make a folder, and check before a long computation that files can be written there.

    Args:
        folder: where files are to go.
        what: the argument or the environment variables that chose it, for the message.

    Raises:
        InvalidArgumentError: it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{what} must be a folder where files can be written, got {folder} ({error.strerror})"
        ) from error


def write_archive(
    folder: Path, stem: str, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> Path:
    """Write the arrays, then `<stem>.json`, which names them; until the card is there, nothing is.

    The same content gives the same bytes: members carry no time stamp. A pair that is there is
    replaced in one step: a reader sees the old one or the new one, whatever happens to this
    process. What no card names any more is removed.

    Args:
        folder: where both files go; made when missing.
        stem: name of the card without its ending, and how the name of the arrays begins.
        card: what the card says, besides the name, the checksum and the size of the arrays.
        arrays: the arrays by name.

    Returns:
        Path of the card.

    Raises:
        OSError: the files cannot be written; an old pair is as it was.
    """
    content = _archived(arrays)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}.{digest[:16]}.npz"
    said = {**card, "arrays": name, "sha256": digest, "bytes": len(content)}
    path = folder / f"{stem}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder) as alone:
        with new_file(folder / name) as file:
            file.write(content)
        write_text(path, json.dumps(said, indent=1) + "\n")
        if alone:  # else another writer may be about to name what no card names yet
            _remove_unnamed(folder, stem, name)
    return path


def _archived(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_LZMA
            with archive.open(member, "w") as handle:
                np.lib.format.write_array(handle, arrays[name], allow_pickle=False)
    return buffer.getvalue()


def _remove_unnamed(folder: Path, stem: str, name: str) -> None:
    """Remove other arrays of a card, and what killed writers left."""
    arrays = re.compile(re.escape(stem) + r"(\.[0-9a-f]{16})?\.npz")
    old = (path for path in folder.iterdir() if arrays.fullmatch(path.name) and path.name != name)
    for path in [*old, *left_over(folder, f"{stem}.")]:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def reading_card(
    card: Path, kind: str, number: int, repair: str
) -> Iterator[tuple[dict[str, Any], StoredArrays]]:
    """Give what a card says, and its arrays; what goes wrong in the body is damage of the card.

    Args:
        card: the JSON file.
        kind: what the card describes, for messages.
        number: the format that can be read.
        repair: what to do after deleting the card, for messages.

    Raises:
        DamagedDataError: the card is no JSON, of another format, or the body of the `with`
            statement misses an entry or refuses its value.
    """
    try:
        yield _read_pair(card, number)
    except (LookupError, ValueError, TypeError) as error:
        raise DamagedDataError(
            f"{card} is not a {kind} card of format {number} ({error}); delete it and {repair}"
        ) from error


def _read_pair(card: Path, number: int) -> tuple[dict[str, Any], StoredArrays]:
    for _ in range(_LOOKS):
        content: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        _require_format(content["format"], number)
        path = _arrays_of(card, content)
        with suppress(OSError):
            return content, StoredArrays(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return content, StoredArrays(path, None)  # reading them says what is wrong


def _require_format(found: object, number: int) -> None:
    if found != number:
        raise ValueError(f"format {found!r}")


def _arrays_of(card: Path, content: Mapping[str, Any]) -> Path:
    """Return the path of the arrays that a card describes.

    Raises:
        ValueError: the card names something that is no file of arrays beside it.
    """
    name = content.get("arrays", f"{card.name.removesuffix('.json')}.npz")
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(".npz"):
        raise ValueError(f"`arrays` must be the name of an npz file beside the card, got {name!r}")
    return card.with_name(name)
