"""Records of others that name programs, folders of code and files: nothing of it is ever opened."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from numpy.random import Generator

from attacks.files import make_record
from attacks.verdicts import Tally, judged, run_cases
from fedhpo_gym.cli import main
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.studies.environments import FILES, MOST_ENTRIES, PROGRAM, SYSTEM, TRUST
from fedhpo_gym.systems import SYSTEM_MODELS

COMMANDS = ("replay", "regret", "report")


def programs(count: int, seed: int, room: Path) -> list[Tally]:
    """Let records name what is not theirs to name, and read them in every way.

    Every name is a trap: a program that leaves a mark where it runs, a package that leaves one
    where it is imported, and a pipe that hangs whoever opens it.
    """
    from fake_study import edit

    with tempfile.TemporaryDirectory(dir=room) as home:
        good, trap = Path(home) / "good", Path(home) / "trap"
        make_record(good)
        mark = _lay(trap)

        def case(index: int) -> tuple[str, str]:
            rng = stream(seed, "programs", index)
            given, what = _named(rng, trap)
            command = COMMANDS[index % len(COMMANDS)]
            with tempfile.TemporaryDirectory(dir=home) as folder:
                shutil.copytree(good, Path(folder) / "runs")
                (path,) = (Path(folder) / "runs").rglob("*.jsonl")
                edit(path, 1, lambda header: header["spec"]["kwargs"].update(given))
                words = [command, f"{folder}/runs"]
                words += ["--out", f"{folder}/page"] if command == "report" else []
                verdict, said = judged(lambda: "documented" if main(words) else "fine")
            if mark.exists():
                mark.unlink()
                verdict, said = "silent", "it ran"
            return verdict, f"{command}: {said} [{what}]"

        return [run_cases("records that name programs", count, case)]


def _lay(trap: Path) -> Path:
    """Lay the traps, and return where they leave their mark."""
    mark = trap / "mark"
    package = trap / "tree" / "federatedscope"
    (package / "core").mkdir(parents=True)
    (package / "core" / "fed_runner.py").touch()
    said = f"open({str(mark)!r}, 'w').close()\n"
    (package / "__init__.py").write_text(said, encoding="utf-8")
    program = trap / "python"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n", encoding="utf-8")
    program.chmod(0o755)
    os.mkfifo(trap / "pipe")
    return mark


def _named(rng: Generator, trap: Path) -> tuple[dict[str, Any], str]:
    """Return arguments that name a trap, or that are endless, and what they are."""
    places = [str(trap / name) for name in ("tree", "python", "pipe")]
    place = places[int(rng.integers(len(places)))]
    kind = int(rng.integers(4))
    if kind == 0:
        given: dict[str, Any] = {"backend": "federatedscope", "interpreter": str(trap / "python")}
        return {**given, "source": str(trap / "tree")}, "an interpreter and a source"
    if kind == 1:
        model = sorted(SYSTEM_MODELS)[int(rng.integers(len(SYSTEM_MODELS)))]
        name = FILES[int(rng.integers(len(FILES)))]
        return {"system": {"model": model, name: place}}, f"{name} of a clock"
    if kind == 2:
        names = sorted(name for name, kind in TRUST.items() if kind in (PROGRAM, SYSTEM))
        name = names[int(rng.integers(len(names)))]
        return {name: ([place], place, {place: place})[int(rng.integers(3))]}, f"{name} of a kind"
    return {"instances": [{"alpha": 0.5, "seed": 1}] * (MOST_ENTRIES + 1)}, "endless instances"
