"""The build command: compute what is missing, then write the table or the sample.

`fedhpo-gym build` calls `build_table` and `build_sample`. A `Design` (`building/design.py`) lists
the courses in units; `compute_units` trains each unit in a worker process and stores it under
`<folder>/parts` as soon as it is finished, so that an interrupted build goes on where it was. A
worker locks bytes of the file `claims` while it trains a unit: builds that share the
folder, on one machine or several, divide the units among them. Before the first unit, `estimate`
trains single rounds of a few, and says what the rest will cost.
"""

import fcntl
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends.training import make_batch
from fedhpo_gym.building.design import UNIT_NUMBERS, Design, GridDesign, U, this_machine, write_unit
from fedhpo_gym.building.sample import SampleDesign
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    TooLargeError,
)
from fedhpo_gym.core.files import new_file, read_json
from fedhpo_gym.core.processes import WorkerPool, require_scheduler, run_on_cluster
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.self_check import require_equal_bits
from fedhpo_gym.stored.catalogue import writable_table_folder
from fedhpo_gym.tasks import Task


@validate_call
def tell(cost: "Estimate") -> None:
    """Write what a build will cost, one line, above its progress bar."""
    tqdm.write(str(cost), file=sys.stderr)


@validate_call
def build_table(
    task: Task,
    folder: Path | None = None,
    workers: Annotated[int, Range(1)] | None = None,
    *,
    merge: Sequence[Path] = (),
    device: str = "cpu",
    address: str | None = None,
    announce: "Callable[[Estimate], None]" = tell,
) -> Path:
    """Train every course of a task's grid, store the learning curves, and return the card's path.

    Finished units are kept under `<folder>/parts`; a build that was interrupted, even by kill -9,
    computes the units that are missing, and its table is the same as an uninterrupted one. Builds
    of the same table that share a folder, on one machine or several, share the work, and units of
    the builds in `merge` are taken over. Units that are damaged are named, set aside and computed
    again.

    Where the `address` of a dask cluster's scheduler is given, its workers compute and see the
    folder under the same path. `announce` is told what is left to compute; what it raises ends the
    build.
    """
    return _build(GridDesign(task), folder, workers, merge, (device, address), announce)


@validate_call
def build_sample(
    task: Task,
    size: int,
    *,
    rounds: int | Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    repeat_every: int | None = None,
    crossed: bool = False,
    folder: Path | None = None,
    workers: Annotated[int, Range(1)] | None = None,
    merge: Sequence[Path] = (),
    device: str = "cpu",
    address: str | None = None,
    only_finished: bool = False,
    announce: "Callable[[Estimate], None]" = tell,
) -> Path:
    """Train a space-filling sample of courses as `build_table` does, and return the card's path.

    A larger sample of the same rounds and rates continues from a smaller one. Of several `rounds`
    or `rates`, each is drawn equally often. Of `repeat_every` configurations, the first comes under
    all seeds. With `crossed`, `size` counts configurations, each trained at all of the rates under
    the first seed. With `only_finished`, nothing is computed and finished courses are stored.
    """
    design = SampleDesign(task, size, rounds, rates, repeat_every, crossed=crossed)
    where = device, address
    return _build(design, folder, workers, merge, where, None if only_finished else announce)


def _build(
    design: Design[U],
    folder: Path | None,
    workers: int | None,
    merge: Sequence[Path],
    where: tuple[str, str | None],
    announce: "Callable[[Estimate], None] | None",
) -> Path:
    """Compute what is missing, unless `announce` is None, and store what is there."""
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    target = writable_table_folder(folder)
    parts = target / "parts" / design.parts_name
    parts.mkdir(parents=True, exist_ok=True)
    set_damaged_aside(design, parts)
    for source in merge:
        merge_parts(design, source, parts)
    todo = design.missing(parts)
    if todo and announce:
        if where[1] is not None:
            require_scheduler(where[1])
        tqdm.write(
            f"{design.task.table_name}: training single rounds to see the cost", file=sys.stderr
        )
        announce(estimate(design, todo, workers, where[0]))
        compute_units(design, todo, parts, workers, *where)
    commands = {
        path: _recorded_command(path) for path in target.glob(f"{design.task.table_name}.*.json")
    }
    card = design.consolidate(parts, target)
    (old_command, old_size), (new_command, new_size) = (
        commands.get(card, ("", 0)),
        _recorded_command(card),
    )
    if old_command and (old_command != new_command or old_size > new_size):
        printed_command = old_command.replace(SIZE, f"--sample {old_size}")
        tqdm.write(
            f"Replaced what `{printed_command}` made; the same makes it again", file=sys.stderr
        )
    return card


SIZE = "--sample N"


def _recorded_command(card: Path) -> tuple[str, int]:
    """Return the command on a card, but for the size of a sample, and the size."""
    try:
        command = str(read_json(card)["build_command"])
    except (FedHPOError, KeyError, TypeError):
        return "", 0
    match = re.search(r"--sample (\d+)", command)
    return (command.replace(match[0], SIZE), int(match[1])) if match else (command, 0)


def merge_parts(design: Design[U], source: Path, parts: Path) -> None:
    """Copy the units that are not there yet; each is read before, and appears whole."""
    candidates = (source / "parts" / parts.name, source / parts.name, source)
    folders = [folder for folder in candidates if folder.name == parts.name and folder.is_dir()]
    units = [
        (folder, name, courses)
        for folder in folders
        for name, courses in design.stored(folder).items()
    ]
    if not units:
        raise InvalidArgumentError(
            f"`merge` must name folders with finished units of the same build, got {source}; "
            f"there is no unit in {candidates[0]}: same task, rounds, rates, data and engine?"
        )
    for folder, name, courses in units:
        target = parts / f"{name}.npz"
        if not target.exists():
            design.read(folder, name, courses)
            with new_file(target) as handle:
                handle.write((folder / target.name).read_bytes())


def set_damaged_aside(design: Design[U], parts: Path) -> None:
    """Read all stored units; damaged ones are named and get another name, so they are missing."""
    for name, courses in design.stored(parts).items():
        path = parts / f"{name}.npz"
        try:
            design.read(parts, name, courses)
        except TooLargeError:
            raise
        except DamagedDataError as error:
            aside = path.with_suffix(".npz.damaged")
            path.replace(aside)
            reason = error.__cause__ or error
            tqdm.write(f"{path} is damaged ({reason}); it is {aside.name} now", file=sys.stderr)


ESTIMATED_UNITS, ENOUGH_S = 16, 20.0
"""Units of which a round is trained to see the cost, at most, and seconds after which no further
one is: configurations differ by orders of magnitude, so that one would mislead."""


@dataclass(frozen=True)
class Estimate:
    """What is left to compute."""

    name: str  # name of the table or sample
    courses: int
    rounds: int  # rounds of all courses together
    core_hours: float  # hours that one core would take
    workers: int  # processes that share the work

    @property
    def hours(self) -> float:
        """Hours from now, if every worker has a core of its own."""
        return self.core_hours / self.workers

    def __str__(self) -> str:
        plural, hours = "s" if self.workers > 1 else "", self.core_hours
        two_digits = f"{float(f'{hours:.2g}'):,.0f}" if hours >= 10 else f"{hours:.2g}"
        return (
            f"{self.name}: {self.courses:,} courses, {self.rounds:,} rounds, about "
            f"{two_digits} core-hours, {_format_duration(self.hours)} with "
            f"{self.workers} worker{plural}"
        )


def estimate(design: Design[U], units: Sequence[U], workers: int, device: str) -> Estimate:
    """Train one round of units from all over some, and return what all their rounds will take."""
    task = design.task
    # Models are evaluated with every round or rarely; a round that is not evaluated is the rule.
    often = len(task.evaluated_rounds) == task.max_round
    begin, seconds, trained = time.perf_counter(), 0.0, 0
    shares = _spread_evenly(min(len(units), ESTIMATED_UNITS))
    for count, share in enumerate([shares[0], *shares]):
        courses = _slice_courses(
            design.courses(units[int(share * len(units))]), task.num_parameters, share
        )
        batch = make_batch(task, courses, device, design.horizon)
        start = time.perf_counter()
        batch.advance(1, evaluated=[1] if often else [])
        now = time.perf_counter()
        if count or now - begin > ENOUGH_S:  # much of the very first may be what compiles once
            seconds, trained = seconds + now - start, trained + len(courses)
        if trained and now - begin > ENOUGH_S:
            break
    counts = [(len(design.courses(unit)), design.evaluated_rounds(unit.name)) for unit in units]
    courses_left = sum(count for count, _ in counts)
    rounds = sum(count * evaluated[-1] for count, evaluated in counts)
    core_hours = seconds / trained * rounds / 3600
    return Estimate(task.table_name, courses_left, rounds, core_hours, min(workers, len(units)))


def _spread_evenly(count: int) -> list[float]:
    """Return numbers in [0, 1), the middle first, of which any first few are evenly spread."""
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    return [(0.5 + i * golden) % 1.0 for i in range(count)]


def _slice_courses(courses: Sequence[Course], parameters: int, share: float) -> Sequence[Course]:
    """Return courses that have no more parameters than a unit should have; `share` says where."""
    count = min(max(UNIT_NUMBERS // parameters, 1), len(courses))
    first = int(share * (len(courses) - count + 1))
    return courses[first : first + count]


def _format_duration(hours: float) -> str:
    for name, length in (("days", 24.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.1f} {name}"
    return f"{max(hours * 3600, 1):.0f} seconds"


WAIT_S = 1.0
"""Seconds between two looks at what other builds compute."""


def compute_units(
    design: Design[U],
    units: Sequence[U],
    folder: Path,
    workers: int,
    device: str = "cpu",
    address: str | None = None,
    work: "type[UnitWork[U]] | None" = None,
) -> None:
    """Compute and store units one by one; those that other builds compute are waited for."""
    if address is not None:
        _compute_on_cluster(design, units, folder, device, address)
        return
    job = (work or UnitWork)(design, folder, device, try_laws(design.task, device))
    crew = WorkerPool[U](workers, job)
    with tqdm(unit="round", desc=design.task.table_name) as bar, crew:
        while units:
            bar.total = bar.n + sum(design.evaluated_rounds(unit.name)[-1] for unit in units)
            bar.refresh()
            done = crew.run(units, lambda: bar.update() and None)
            units = design.missing(folder)
            if units and not any(done):
                bar.set_postfix_str(f"another build computes the last {len(units)} units")
                time.sleep(WAIT_S)


def _compute_on_cluster(
    design: Design[U], units: Sequence[U], folder: Path, device: str, address: str
) -> None:
    work = UnitWork(design, folder.resolve(), device)
    while units:
        with tqdm(total=len(units), unit="unit", desc=design.task.table_name) as bar:
            done = []
            for outcome in run_on_cluster(work, units, address):
                if outcome.error is not None:
                    raise outcome.error
                done.append(outcome.result)
                bar.update()
        units = design.missing(folder)
        if units and not any(done):
            time.sleep(WAIT_S)


@dataclass(frozen=True)
class UnitWork(Generic[U]):
    """What a worker does with a unit: compute and store it, unless another build does."""

    design: Design[U]  # what the units belong to
    folder: Path  # where units are stored
    device: str  # torch device
    # of `try_laws` on this machine; None where each process finds out itself.
    verdict: str | None = None

    def __call__(self, unit: U, advance: Callable[[], None] | None = None) -> bool:
        """Return whether the unit is stored now; if not, another build computes it."""
        with claim(self.folder, self.design.positions(unit)) as ours:
            if ours and not self.design.is_stored(unit, self.folder):
                verdict = self.verdict
                if verdict is None:
                    verdict = try_laws(self.design.task, self.device)
                compute_unit(self.design, unit, self.folder, self.device, advance, verdict)
            return ours


def try_laws(task: Task, device: str) -> str:
    """Try whether a course of a task has the same bits in any company here; seconds, once."""
    if device != "cpu":
        return ""
    verdicts = [require_equal_bits(get_model(name), task.precision) for name in task.models]
    return "; ".join(dict.fromkeys(verdicts))


def compute_unit(
    design: Design[U],
    unit: U,
    folder: Path,
    device: str = "cpu",
    advance: Callable[[], None] | None = None,
    verdict: str = "",
) -> None:
    """Train every course of a unit and store its curves."""
    batch = make_batch(design.task, design.courses(unit), device, design.horizon)
    rounds = design.evaluated_rounds(unit.name)
    curves = batch.advance(rounds[-1], advance, rounds)
    arrays: dict[str, NDArray[Any]] = {
        "metrics": curves.metrics,
        "rounds": curves.rounds,
        "diverged_at": curves.diverged_at,
        "hardware": np.array(this_machine(device, verdict)),
    }
    write_unit(folder, unit.name, arrays)


CLAIMS = "claims"


@contextmanager
def claim(folder: Path, positions: Sequence[int]) -> Iterator[bool]:
    """Lock a byte per position for the body; give whether all are this process's."""
    descriptor = _open_claims(folder / CLAIMS)
    held: list[int] = []
    try:
        yield all(_lock(descriptor, position, held) for position in positions)
    finally:
        for position in held:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, position)


def _lock(descriptor: int, position: int, held: list[int]) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # no locks here
        return True
    held.append(position)
    return True


@cache
def _open_claims(path: Path) -> int:
    # Never closed: closing any descriptor of the file would give all claims of the process back.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
