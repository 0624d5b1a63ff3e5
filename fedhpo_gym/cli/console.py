"""What every subcommand says to its user, and how."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import fedhpo_gym


def say(text: str) -> None:
    """Write one line of output."""
    sys.stdout.write(f"{text}\n")


def package_version() -> str:
    """Return the version of this package."""
    return str(getattr(fedhpo_gym, "__version__", "unknown"))


def say_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table whose columns are as wide as what is in them."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(cells).rstrip())
