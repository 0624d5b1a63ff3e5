"""Arrays and the card that vouches for them: one npz and one JSON file, written and checked.

Shared by everything the package stores: tables, samples, surrogates and learned policies.
`numpy.load` opens the arrays without running code.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.files import new_file, write_text


def read_arrays(path: Path, sha256: str, repair: str) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file whose checksum is as its card states.

    Args:
        path: the npz file.
        sha256: checksum from the card.
        repair: command that makes the file again.

    Raises:
        DamagedDataError: the file is missing or not the one the card describes.
    """
    try:
        _check_sum(path, sha256)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error}); delete it and run `{repair}`"
        ) from error


def _check_sum(path: Path, sha256: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
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
    """Write `<stem>.npz`, then `<stem>.json`; until the card is there, nothing is.

    The same content gives the same bytes: members carry no time stamp.

    Args:
        folder: where both files go; made when missing.
        stem: name of both files without their ending.
        card: what the card says, besides the checksum and the size of the arrays.
        arrays: the arrays by name.

    Returns:
        Path of the card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / f"{stem}.npz") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
            for name in sorted(arrays):
                member = zipfile.ZipInfo(f"{name}.npy")
                member.compress_type = zipfile.ZIP_LZMA
                with archive.open(member, "w") as handle:
                    np.lib.format.write_array(handle, arrays[name], allow_pickle=False)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    content = {**card, "sha256": digest, "bytes": size}
    path = folder / f"{stem}.json"
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path


@contextmanager
def reading_card(card: Path, kind: str, number: int, repair: str) -> Iterator[dict[str, Any]]:
    """Give the content of a card; what goes wrong while it is taken apart is damage of the card.

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
        content: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        _require_format(content["format"], number)
        yield content
    except (LookupError, ValueError, TypeError) as error:
        raise DamagedDataError(
            f"{card} is not a {kind} card of format {number} ({error}); delete it and {repair}"
        ) from error


def _require_format(found: object, number: int) -> None:
    if found != number:
        raise ValueError(f"format {found!r}")


def arrays_beside(card: Path) -> Path:
    """Return the path of the arrays that a card describes."""
    return card.with_name(card.name.removesuffix(".json") + ".npz")
