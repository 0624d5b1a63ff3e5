"""What the studies beside this file share: pieces that survive interruption, and statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def piece(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a finished run left in a JSON file, or compute it and leave it there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """Return the mean of independent values and its standard error (0 for a single value)."""
    found = np.asarray(values, dtype=np.float64).ravel()
    if found.size < 2:
        return float(found.mean()), 0.0
    return float(found.mean()), float(found.std(ddof=1)) / math.sqrt(found.size)


def cell(values: ArrayLike, digits: int = 3, sign: bool = False) -> str:
    """Return `mean ± standard error` as text."""
    mean, error = mean_and_error(values)
    return f"{mean:{'+' if sign else ''}.{digits}f} ± {error:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
