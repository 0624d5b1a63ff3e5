"""What every subcommand says to its user, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import Any

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError

NARROWEST, FEWEST = 40, 12
"""Columns that a terminal has at least, and that the last column of a table keeps."""


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


def width_of_terminal() -> int:
    """Return the columns of the terminal, at least 40; a file or a pipe has room for everything."""
    return max(get_terminal_size((sys.maxsize, 24)).columns, NARROWEST)


def say_prose(text: str) -> None:
    """Write a paragraph, broken into lines where the terminal ends."""
    say(fill(text, min(width_of_terminal(), len(text) + 1), break_on_hyphens=False))


def say_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table whose columns are as wide as what is in them.

    Where the terminal is narrower, the last column goes on in further lines.
    """
    lines = [tuple(heads), *map(tuple, rows)]
    *widths, last = (max(map(len, column)) for column in zip(*lines, strict=True))
    before = sum(widths) + 2 * len(widths)
    room = min(last, max(width_of_terminal() - before, FEWEST))
    for *first, end in lines:
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=True)]
        parts = wrap(end, room, break_on_hyphens=False) if len(end) > room else [end]
        say("  ".join([*cells, parts[0]]).rstrip())
        for part in parts[1:]:
            say(" " * before + part)


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
