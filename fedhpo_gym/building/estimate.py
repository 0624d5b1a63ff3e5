"""What a build will cost, from one round that is really trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedhpo_gym.building.design import UNIT_NUMBERS, Design, U
from fedhpo_gym.courses.training import make_batch
from fedhpo_gym.fl.course import Course

SHORT_S = 120.0
"""A first round shorter than this is taken again: much of it may be what is compiled just once."""


@dataclass(frozen=True)
class Estimate:
    """What is left to compute.

    Attributes:
        name: name of the table or sample.
        courses: courses.
        rounds: rounds of all courses together.
        core_hours: hours that one core would take.
        workers: processes that share the work.
    """

    name: str
    courses: int
    rounds: int
    core_hours: float
    workers: int

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

    Units are listed from small to large batches, so the one in the middle is about average. What
    it takes is divided by its courses, because those of a unit share work. Of a unit of large
    models, which share little, only the courses in the middle are trained.

    Args:
        design: what the units belong to.
        units: what is to be computed, at least one.
        workers: worker processes.
        device: torch device.
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
