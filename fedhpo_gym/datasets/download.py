"""Fetching one file over https: whole or not at all, and checked against its checksum.

Where the publisher gives no checksum, that of a file which could be read is written beside it
(`<file>.sha256`), and every later use is verified against it. A file that cannot be read is never
trusted in this way, and when it is deleted its old checksum means nothing any more.
"""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from fedhpo_gym.datasets import cache
from fedhpo_gym.errors import DamagedDataError, MissingDataError
from fedhpo_gym.files import new_file, write_text

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

    Where no checksum is known, the file gets one when the body has read it without an error; what
    was downloaded just now and cannot be read is removed, so that the next try downloads it again.

    Args:
        url: an https address.
        path: where the file is kept.
        sha256: its checksum, or None where none is known.
        repair: the command that the user can repeat.

    Raises:
        MissingDataError: the download failed; says how to provide the file by hand.
        DamagedDataError: the file does not have its checksum; a bad download is not kept.
    """
    beside = _checksum_of(path)
    new = not path.exists()
    if new:
        _download(url, path, sha256, repair)
    expected = sha256 or cache.read_checksum(beside)
    if expected is not None:
        cache.verify(path, expected, repair)
    try:
        yield path
    except DamagedDataError:
        if new:
            path.unlink(missing_ok=True)
        raise
    if expected is None and os.access(path.parent, os.W_OK):
        write_text(beside, cache.checksum(path) + "\n")


def fetch(url: str, path: Path, sha256: str, repair: str) -> Path:
    """Return a file whose checksum is known, downloaded when it is not there yet; see `fetched`."""
    with fetched(url, path, sha256, repair):
        return path


def _checksum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _download(url: str, path: Path, sha256: str | None, repair: str) -> None:
    cache.make_folder(path.parent)
    _checksum_of(path).unlink(missing_ok=True)
    try:
        with new_file(path) as part:
            _receive(url, part)
            if sha256 is not None and (found := cache.digest_of(part)) != sha256:
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
