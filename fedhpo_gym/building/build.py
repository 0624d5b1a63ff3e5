"""The build command: compute what is missing, then write the table or the sample."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fedhpo_gym.backends.training import make_batch
from fedhpo_gym.building.design import UNIT_NUMBERS, Design, U
from fedhpo_gym.building.grid import GridDesign
from fedhpo_gym.building.sample import SampleDesign
from fedhpo_gym.building.workers import compute_units
from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import new_file
from fedhpo_gym.core.processes import require_scheduler
from fedhpo_gym.fl.course import Course
from fedhpo_gym.stored.catalogue import writable_table_folder
from fedhpo_gym.tasks import Task


@checked_types
def tell(found: Estimate) -> None:
    """Write what a build will cost, one line, above its progress bar."""
    tqdm.write(str(found), file=sys.stderr)


@checked_types
def build_table(
    task: Task,
    folder: Path | None = None,
    workers: int | None = None,
    *,
    merge: Sequence[Path] = (),
    device: str = "cpu",
    address: str | None = None,
    announce: Callable[[Estimate], None] = tell,
) -> Path:
    """Train every course of a task's grid and store the learning curves.

    Finished units are kept under `<folder>/parts`; a build that was interrupted, even by kill -9,
    computes the units that are missing, and its table is the same as an uninterrupted one.
    Builds of the same table that share a folder, on one machine or several, share the work. The
    units of one table take about 1 GB; delete them when the table is written. Units that are
    damaged are named, set aside and computed again.

    Args:
        task: the task, with its algorithm, alpha and preprocessing.
        folder: where the table goes; by default the folder `open_table` looks in first.
        workers: worker processes; by default one per core.
        merge: folders of other builds of the same table, whose finished units are taken over.
        device: torch device; several workers share it.
        address: of the scheduler of a dask cluster, whose workers compute and see the folder under
            the same path; by default this machine computes. `workers` is then how many it has, for
            the estimate.
        announce: is told what is left to compute before it is computed; what it raises ends the
            build. By default, it writes a line.

    Returns:
        Path of the table's card.

    Raises:
        InvalidArgumentError: `workers` is not positive, nothing can be written into the folder, a
            folder to merge holds no unit, or no scheduler answers at the address.
        MissingDataError: the training data cannot be had.
        DamagedDataError: a unit to merge is damaged.
        MissingDependencyError: dask.distributed is not installed.
        UnequalBitsError: on this processor a course would have other bits beside others.
        WorkerLostError: a worker process was killed; finished units are kept.
    """
    return _build(GridDesign(task), folder, workers, merge, (device, address), announce)


@checked_types
def build_sample(
    task: Task,
    size: int,
    *,
    rounds: int | Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    repeat_every: int | None = None,
    folder: Path | None = None,
    workers: int | None = None,
    merge: Sequence[Path] = (),
    device: str = "cpu",
    address: str | None = None,
    only_finished: bool = False,
    announce: Callable[[Estimate], None] = tell,
) -> Path:
    """Train a space-filling sample of courses and store their learning curves.

    Works and resumes like `build_table`. A larger sample of the same rounds and rates continues
    from a smaller one.

    Args:
        task: the task, with its algorithm, alpha and preprocessing.
        size: number of courses.
        rounds: rounds of every course; all rounds of the task when None. Of several numbers, each
            is drawn equally often, and one that is given twice is drawn twice as often.
        rates: client sample rates, drawn likewise; the grid of the task when None.
        repeat_every: of so many configurations, the first comes under all seeds; None: none does.
        folder: where the sample goes; by default the folder of the user's tables.
        workers: worker processes; by default one per core.
        merge: folders of other builds of the same sample, whose finished units are taken over.
        device: torch device; several workers share it.
        address: of the scheduler of a dask cluster, whose workers compute and see the folder under
            the same path; by default this machine computes. `workers` is then how many it has, for
            the estimate.
        only_finished: compute nothing, store the courses that are finished.
        announce: as in `build_table`.

    Returns:
        Path of the sample's card.

    Raises:
        InvalidArgumentError: a number is out of its range, nothing can be written into the folder,
            a folder to merge holds no unit, or no scheduler answers at the address.
        MissingDataError: the training data cannot be had, or no course is finished.
        DamagedDataError: a unit to merge is damaged.
        UnequalBitsError: on this processor a course would have other bits beside others.
        WorkerLostError: a worker process was killed; finished units are kept.
    """
    design = SampleDesign(task, size, rounds, rates, repeat_every)
    where = device, address
    return _build(design, folder, workers, merge, where, None if only_finished else announce)


def _build(
    design: Design[U],
    folder: Path | None,
    workers: int | None,
    merge: Sequence[Path],
    where: tuple[str, str | None],
    announce: Callable[[Estimate], None] | None,
) -> Path:
    """Compute what is missing, unless `announce` is None, and store what is there."""
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    if workers < 1:
        raise InvalidArgumentError(f"`workers` must be at least 1, got {workers!r}")
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
        tqdm.write(f"{design.task.table_name}: training one round to see the cost", file=sys.stderr)
        announce(estimate(design, todo, workers, where[0]))
        compute_units(design, todo, parts, workers, *where)
    return design.consolidate(parts, target)


def merge_parts(design: Design[U], source: Path, parts: Path) -> None:
    """Copy the units that are not there yet; each is read before, and appears whole."""
    candidates = (source / "parts" / parts.name, source / parts.name, source)
    known = [folder for folder in candidates if folder.name == parts.name and folder.is_dir()]
    units = [
        (folder, name, courses)
        for folder in known
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


SHORT_S = 120.0
"""A first round shorter than this is taken again: much of it may be what is compiled just once."""


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
        """Say it in one line."""
        plural = "s" if self.workers > 1 else ""
        return (
            f"{self.name}: {self.courses:,} courses, {self.rounds:,} rounds, about "
            f"{_two_digits(self.core_hours)} core-hours, {_duration(self.hours)} with "
            f"{self.workers} worker{plural}"
        )


def estimate(design: Design[U], units: Sequence[U], workers: int, device: str) -> Estimate:
    """Train one round of the middle one of some units, and say what all their rounds will take.

    Units are listed by batch size, so the middle one is about average; of large models, which share
    little, only the courses in its middle are trained.
    """
    middle = _middle(design.courses(units[len(units) // 2]), design.task.num_parameters)
    # Models are evaluated with every round or rarely; a round that is not evaluated is the rule.
    task = design.task
    often = len(task.evaluated_rounds) == task.max_round
    batch = make_batch(task, middle, device, design.horizon)
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        batch.advance(1, evaluated=[1] if often else [])
        seconds = time.perf_counter() - start
        if seconds > SHORT_S:
            break
    counts = [(len(design.courses(unit)), design.evaluated_rounds(unit.name)) for unit in units]
    courses = sum(count for count, _ in counts)
    rounds = sum(count * evaluated[-1] for count, evaluated in counts)
    core_hours = seconds / len(middle) * rounds / 3600
    return Estimate(task.table_name, courses, rounds, core_hours, min(workers, len(units)))


def _middle(courses: Sequence[Course], parameters: int) -> Sequence[Course]:
    """Return courses from the middle that have no more parameters than a unit should have."""
    count = min(max(UNIT_NUMBERS // parameters, 1), len(courses))
    first = (len(courses) - count) // 2
    return courses[first : first + count]


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10 else f"{number:.2g}"


def _duration(hours: float) -> str:
    for name, length in (("days", 24.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.1f} {name}"
    return f"{max(hours * 3600, 1):.0f} seconds"
