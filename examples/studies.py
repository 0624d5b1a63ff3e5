"""What the studies beside this file share: pieces that survive interruption, and statistics."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

CORES = os.cpu_count() or 1


def piece(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a finished run left in a JSON file, or compute it and leave it there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    return read(path)


def read(path: Path) -> Any:
    """Return what a finished run left."""
    return json.loads(path.read_text(encoding="utf-8"))


def pieces(jobs: Mapping[Path, Callable[[], Any]], workers: int) -> dict[Path, Any]:
    """Return all pieces; those not there yet are computed, `workers` at a time in processes."""
    missing = [path for path in jobs if not path.exists()]
    done = len(jobs) - len(missing)
    with tqdm(total=len(jobs), initial=done, unit="piece", disable=None) as bar:
        if min(workers, len(missing)) < 2:
            for path in missing:
                piece(path, jobs[path])
                bar.update()
        else:
            with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
                running = [pool.submit(piece, path, jobs[path]) for path in missing]
                try:
                    for one in as_completed(running):
                        one.result()
                        bar.update()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
    return {path: read(path) for path in jobs}


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
