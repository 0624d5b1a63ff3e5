"""What the studies beside this file share: pieces that survive interruption, and statistics."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from fedhpo_gym import __version__
from fedhpo_gym.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.fl.datasets import SOURCES, TableSource, load_dataset

CORES = os.cpu_count() or 1


def piece(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a finished run left in a JSON file, or compute it and leave it there."""
    if not path.exists():
        write(path, compute())
    return read(path)


def write(path: Path, value: Any) -> None:
    """Leave a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read(path: Path) -> Any:
    """Return what a finished run left."""
    return json.loads(path.read_text(encoding="utf-8"))


def claim(out: Path, study: Any) -> None:
    """Say in a new folder which study it holds; pieces of two studies are never mixed.

    Args:
        out: the folder.
        study: a dataclass of all that its pieces depend on.

    Raises:
        InvalidArgumentError: it holds another study, or pieces that nobody claimed.
    """
    path = out / "study.json"
    asked = {**asdict(study), "fedhpo_gym": __version__, "engine": ENGINE_VERSION}
    if not path.exists():
        if any(out.glob("*.json")):
            raise InvalidArgumentError(
                f"`--out` must be a new folder or hold a study.json, got {out} with results of an "
                "unknown study; choose another --out"
            )
        write(path, asked)
    asked, held = json.loads(json.dumps(asked)), read(path)
    differ = [name for name in {**held, **asked} if held.get(name) != asked.get(name)]
    if differ:
        told = "; ".join(f"{name} {held.get(name)} there, {asked.get(name)} now" for name in differ)
        raise InvalidArgumentError(
            f"`--out` must be a new folder or hold the same study, got {out} with another one "
            f"({told}); choose another --out, or the options that it was made with"
        )


def tables_here(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tables that load without a download; print how the others are fetched."""
    found = []
    for name in names:
        try:
            _load(name)
            found.append(name)
        except MissingDataError as error:
            print(error)
    return tuple(found)


def _load(name: str) -> None:
    source = SOURCES[name]
    if isinstance(source, TableSource) and not source.here:
        raise MissingDataError(f"{name} is left out: it is not here; run `{source.repair}`")
    load_dataset(name)


def positive(word: str) -> int:
    """Return an option of the command line that counts something."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {word!r}")
    return int(word)


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
