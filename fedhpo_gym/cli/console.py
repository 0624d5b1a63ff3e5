"""What every subcommand says to its user, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from fedhpo_gym.errors import FedHPOError, InvalidArgumentError


def say(text: str) -> None:
    """Write one line of output; what the terminal cannot show is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


def complain(command: str, error: Exception | str) -> None:
    """Write one line about what went wrong."""
    words = str(error)
    if isinstance(error, OSError) and not isinstance(error, FedHPOError) and error.strerror:
        words = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    sys.stderr.write(f"fedhpo-gym {command}: {' '.join(words.splitlines())}\n")


def say_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table whose columns are as wide as what is in them."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(cells).rstrip())


def parse_pairs(option: str, words: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of words `name=value`; values are JSON, else plain text."""
    pairs: list[tuple[str, Any]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InvalidArgumentError(f"`{option}` must be of the form name=value, got {word!r}")
        if name in dict(pairs):
            raise InvalidArgumentError(f"`{option}` names {name!r} twice")
        pairs.append((name, _value(option, name, value)))
    return pairs


def _value(option: str, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text[0] not in "{[\"'":
            return text
        raise InvalidArgumentError(
            f"`{option} {name}` must be JSON, with names in double quotation marks and the whole "
            f"word in single ones, such as '{name}={{\"key\": 0.1}}', got {text} ({error})"
        ) from error
