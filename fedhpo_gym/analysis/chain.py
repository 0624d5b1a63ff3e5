"""Lines with digests: a changed, lost, doubled or moved line is noticed when it is read.

A line is a JSON object whose last field, `digest`, is that of all before it in the line and of the
digest of the line before. It guards against damage, not against forgers: whoever writes a line can
write its digest, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

START: Final = ""
"""What stands for the digest before the first line."""
_LENGTH: Final = 16
_BEFORE, _AFTER = b', "digest": "', b'"}'
_TAIL: Final = len(_BEFORE) + _LENGTH + len(_AFTER)


def sealed(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines, JSON objects with at least one field, with their digests."""
    digest = START
    for line in lines:
        whole, digest = seal(line, digest)
        yield whole


def seal(line: bytes, before: str) -> tuple[bytes, str]:
    """Return a line, a JSON object with at least one field, with its digest, and the digest.

    Args:
        line: what is written.
        before: digest of the line before, or `START`.
    """
    digest = _digest(line, before)
    return line[:-1] + _BEFORE + digest.encode("ascii") + _AFTER, digest


def opened(line: bytes, before: str) -> tuple[bytes, str] | None:
    """Return a line without its digest, and the digest; None if it does not belong there.

    Args:
        line: a line that `sealed` made.
        before: digest of the line before, or `START`.
    """
    content = line[:-_TAIL] + b"}"
    digest = _digest(content, before)
    whole = line[-_TAIL:] == _BEFORE + digest.encode("ascii") + _AFTER
    return (content, digest) if whole else None


def _digest(line: bytes, before: str) -> str:
    return hashlib.sha256(before.encode("ascii") + line).hexdigest()[:_LENGTH]
