"""Long computations in pieces that survive interruption, one JSON file each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedhpo_gym.core import __version__
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import write_text
from fedhpo_gym.fl import ENGINE_VERSION


def piece(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a finished run left in a JSON file, or compute it and leave it there."""
    if not path.exists():
        write(path, compute())
    return read(path)


def write(path: Path, value: Any) -> None:
    """Leave a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(value, indent=1) + "\n")


def read(path: Path) -> Any:
    """Return what a finished run left."""
    return json.loads(path.read_text(encoding="utf-8"))


def claim(out: Path, study: Any) -> None:
    """Say in a new folder which study it holds; pieces of two studies are never mixed."""
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
