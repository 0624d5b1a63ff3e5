"""Fetching one public file into the data folder, whole or not at all."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.fl.datasets import cache

TIMEOUT = 60.0
"""Seconds without a byte after which a download counts as failed."""


def fetch(address: str, path: Path, check: Callable[[Path], None], repair: str) -> None:
    """Download a file to `path`; it appears there after `check` accepted it.

    Args:
        address: an https address.
        path: where the file belongs.
        check: raises when the downloaded file is not the expected one.
        repair: the command to run again.

    Raises:
        MissingDataError: there is no network, the address does not answer, or the folder cannot
            be written to.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:  # noqa: S310 - always https
            part.write_bytes(answer.read())
    except OSError as error:
        raise MissingDataError(
            f"{address} could not be downloaded to {path.parent}: {error}. Check the network and "
            f"run `{repair}`, or put the file {path.name} into the folder named by {cache.ENV_VAR}"
        ) from error
    check(part)
    part.replace(path)
