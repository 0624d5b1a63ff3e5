"""How much of a file may be read: what it declares and what it holds are bounded beforehand.

A small file can stand for a large one: compressed, as nested lists, or as a number in a header.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from fedhpo_gym.errors import InvalidArgumentError, TooLargeError

ENV_VAR = "FEDHPO_GYM_MAX_BYTES"
DEFAULT = 1 << 29
"""512 MiB: all arrays of a file, uncompressed, or the text of a json file."""

_VALUE, _CONTAINER = 64, 256
"""About the bytes of a number or a short string in a list, and of a list or a dictionary."""
_MOST_DIGITS = 18


def max_bytes() -> int:
    """Return how many bytes a file may stand for: `FEDHPO_GYM_MAX_BYTES`, else 512 MiB.

    Raises:
        InvalidArgumentError: the environment variable is not a positive integer.
    """
    text = os.environ.get(ENV_VAR, "").strip()
    if not text:
        return DEFAULT
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    if number < 1:
        raise InvalidArgumentError(
            f"`{ENV_VAR}` must be a positive number of bytes, of at most {_MOST_DIGITS} digits, "
            f"got {text[:40]!r}"
        )
    return number


def require_bytes(size: int, what: object) -> None:
    """Check that something of this size may be read.

    Args:
        size: bytes that it takes in memory.
        what: what it is, with its path, for the message.

    Raises:
        TooLargeError: it is larger than `max_bytes`.
    """
    limit = max_bytes()
    if size > limit:
        raise TooLargeError(
            f"{what} would take {size:,} bytes, and {limit:,} may be read; if it is genuine, set "
            f"the environment variable `{ENV_VAR}` to {size} or more"
        )


def load_json(
    content: bytes,
    what: object,
    share: int = 1,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return what a json text says, if its text and its values fit into memory.

    Args:
        content: the text.
        what: what it is, with its path, for messages.
        share: its values may take this many times what may be read.
        parse_constant: what to make of NaN and infinities; see `json.loads`.

    Raises:
        TooLargeError: the text, or what it stands for, is larger than may be read.
        ValueError: it is no json, or nested too deeply.
    """
    require_bytes(len(content), what)
    containers = content.count(b"[") + content.count(b"{")
    values = content.count(b",") + containers
    require_bytes((_VALUE * values + _CONTAINER * containers) // share, f"{what}, decoded,")
    try:
        return json.loads(content, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
