"""Cells of a study: one run each, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

from fedhpo_gym.errors import WorkerLostError, WorkerTimeoutError
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.studies.run import do_run

Status = Literal["done", "there", "failed", "timeout", "lost"]
GOOD: Final = ("done", "there")
LOG: Final = "cells.ndjson"


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        plan: the cell.
        status: "done" now, "there" before, "failed" where it raised, "timeout", or "lost" where
            its process ended.
        seconds: real seconds that it took; nothing that is judged depends on them.
        words: what went wrong, or what was told on the way.
    """

    plan: Plan
    status: Status
    seconds: float = 0.0
    words: str = ""

    @classmethod
    def of_error(cls, plan: Plan, error: Exception, seconds: float = 0.0) -> Outcome:
        """Return what an error means."""
        kinds: tuple[tuple[type[Exception], Status], ...] = (
            (WorkerTimeoutError, "timeout"),
            (WorkerLostError, "lost"),
        )
        status: Status = "failed"
        for kind, meaning in kinds:
            if isinstance(error, kind):
                status = meaning
        return cls(plan, status, seconds, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class CellWork:
    """What a worker does with a cell.

    Attributes:
        folder: where records go.
        columnar: whether they are Parquet files.
        track: what follows the runs; see `fedhpo_gym.studies.tracking`.
    """

    folder: Path
    columnar: bool = True
    track: tuple[str, ...] = field(default=())

    def __call__(self, plan: Plan, advance: Callable[[], None]) -> Outcome:
        """Do a run unless its record is there; what it raises is an outcome, too."""
        begun, told = monotonic(), list[str]()
        try:
            done = do_run(plan, self.folder, lambda _: None, told.append, self.columnar, self.track)
        except Exception as error:  # noqa: BLE001 - one cell must not end the others
            return Outcome.of_error(plan, error, monotonic() - begun)
        return Outcome(plan, "done" if done else "there", monotonic() - begun, "; ".join(told))


def log(folder: Path, outcome: Outcome) -> None:
    """Append an outcome to the log of a study."""
    line = json.dumps(asdict(outcome), allow_nan=False)
    with (folder / LOG).open("a", encoding="utf-8") as handle:
        handle.write(f"{line}\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the last outcome of every cell of a study, in the order of the first; none if no log.

    A line that was cut short by a crash is left out.
    """
    path, last = folder / LOG, dict[str, dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
            last[json.dumps(found["plan"], sort_keys=True)] = found
        except (ValueError, KeyError, TypeError):
            continue
    return list(last.values())


def faults(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of cells that left no record."""
    return [one for one in outcomes if one.status not in GOOD]
