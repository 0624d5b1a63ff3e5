"""Mutation fuzzing: every kind of file, damaged in every way, read in a process with limits."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from attacks.damage import change, damage
from attacks.files import Kind, card_in
from attacks.verdicts import Tally, judged, run_cases, same
from fedhpo_gym.core.archive import write_archive
from fedhpo_gym.core.seeding import stream

ROWS = 1 << 20
"""Where the numbers of cases of one kind of file end."""


def fuzz(kind: Kind, number: int, count: int, seed: int, room: Path) -> Tally:
    """Damage files of one kind, one place of one file per case."""

    def case(index: int) -> tuple[str, str]:
        rng = stream(seed, "reliability", number, index)
        with tempfile.TemporaryDirectory(dir=room) as home:
            folder = shutil.copytree(good, Path(home) / "files")
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            what = damage(files[int(rng.integers(len(files)))], rng)
            verdict, said = judged(lambda: "fine" if same(kind.read(folder), before) else "silent")
            return verdict, f"{said} [{what}]"

    with tempfile.TemporaryDirectory(dir=room) as home:
        good = Path(home) / "good"
        good.mkdir()
        kind.make(good)
        with tempfile.TemporaryDirectory(dir=room) as other:
            before = kind.read(shutil.copytree(good, Path(other) / "files"))
        return run_cases(f"damaged files: {kind.name}", count, case)


def forge(kind: Kind, number: int, count: int, seed: int, room: Path) -> Tally:
    """Change what a pair says, and stamp it anew: other answers are right, other faults are not."""

    def case(index: int) -> tuple[str, str]:
        rng = stream(seed, "reliability", number, ROWS + index)
        said, arrays = json.loads(json.dumps(card)), dict(content)
        what = change(said, rng) if rng.random() < 0.6 else _change_array(arrays, rng)
        with tempfile.TemporaryDirectory(dir=room) as home:
            try:
                write_archive(Path(home), stem, said, arrays)
            except (ValueError, TypeError, OverflowError):
                return "documented", f"cannot be written: {what}"
            verdict, told = judged(lambda: _fine(kind.read(Path(home))))
            return verdict, f"{told} [{what}]"

    with tempfile.TemporaryDirectory(dir=room) as home:
        kind.make(Path(home))
        path = card_in(Path(home))
        stem, card = path.name.removesuffix(".json"), json.loads(path.read_text(encoding="utf-8"))
        with np.load(Path(home) / card["arrays"]) as archive:
            content = {name: archive[name] for name in archive.files}
        return run_cases(f"forged pairs: {kind.name}", count, case)


def _fine(_answer: Any) -> str:
    return "fine"


def _change_array(arrays: dict[str, Any], rng: np.random.Generator) -> str:
    name = str(rng.choice(sorted(arrays)))
    array, kind = arrays[name], int(rng.integers(7))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = array[..., :-1] if array.ndim else array
    elif kind == 2:
        arrays[name] = np.zeros((0, *array.shape[1:]), array.dtype)
    elif kind == 3:
        arrays[name] = array.astype(str(rng.choice(["float64", "int8", "complex64", "bool", "U3"])))
    elif kind == 4:
        arrays[name] = array.reshape(-1)[::-1].reshape(array.shape)
    elif kind == 5 and array.size:
        flat = array.copy().reshape(-1)
        flat[int(rng.integers(flat.size))] = rng.choice([0, 1, 127])
        arrays[name] = flat.reshape(array.shape)
    elif array.dtype.kind == "f":
        arrays[name] = np.full_like(array, rng.choice([np.nan, np.inf, 1e30]))
    return f"{name}: change {kind}"
