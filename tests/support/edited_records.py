"""Run records changed on purpose, with digests that fit: what is wrong is what was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedhpo_gym.analysis.records import sealed


def contents(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record without their digests."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name != "digest"} for line in lines]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines with digests that fit."""
    plain = [json.dumps(line).encode("utf-8") for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in sealed(plain)))


def edit(path: Path, line: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one line, counted from 1."""
    lines = contents(path)
    change(lines[line - 1])
    write_lines(path, lines)
