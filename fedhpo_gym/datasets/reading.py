"""What libraries raise about a damaged file, turned into one documented error."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from fedhpo_gym.errors import DamagedDataError, FedHPOError, InvalidArgumentError

_LONGEST = 200
"""Characters of a library's own message that are passed on."""


@contextmanager
def reading(what: object, repair: str) -> Iterator[None]:
    """Say that a file is damaged when what is done in the `with` statement fails because of it.

    The body only reads: whatever its libraries raise, memory that an absurd size asks for and
    nesting too deep included, is then due to the content. What the operating system says about
    permissions, disks or a missing file goes on unchanged, and so do this package's own errors.

    Args:
        what: the file, as the message names it.
        repair: what to do, a clause: "delete it and run `fedhpo-gym download X`".

    Raises:
        DamagedDataError: the content cannot be read; the cause is chained.
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
