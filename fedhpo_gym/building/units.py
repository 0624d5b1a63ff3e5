"""The units of a build: courses that share a seed and a batch size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from fedhpo_gym.fl.packing import Course
from fedhpo_gym.tasks import Task


@dataclass(frozen=True)
class Unit:
    """The part of a grid that is computed, stored and resumed as one.

    Attributes:
        seed: seed of all its courses.
        batch_size: batch size of all its courses.
    """

    seed: int
    batch_size: int

    @property
    def name(self) -> str:
        """File stem of the unit's results."""
        return f"seed{self.seed}-batch{self.batch_size}"


def list_units(task: Task) -> list[Unit]:
    """Return the units of a task's grid, the longest first (smaller batches take more steps)."""
    sizes = task.space["batch_size"].grid
    return [Unit(seed, int(size)) for size in sizes for seed in task.seeds]


def unit_courses(task: Task, unit: Unit) -> list[Course]:
    """Return the courses of a unit in grid order: configurations, then client sample rates."""
    space = task.space
    axes = [(unit.batch_size,) if d.name == "batch_size" else d.grid for d in space.dimensions]
    rates = task.fidelity_space["client_sample_rate"].grid
    return [
        Course(dict(zip(space.names, values, strict=True)), float(rate), unit.seed)
        for values in itertools.product(*axes)
        for rate in rates
    ]


def unit_shape(task: Task) -> tuple[int, ...]:
    """Return the shape of a unit's courses: the grid without batch sizes, then the rates."""
    space = task.space
    axes = [1 if d.name == "batch_size" else len(d.grid) for d in space.dimensions]
    return (*axes, len(task.fidelity_space["client_sample_rate"].grid))


def place(task: Task, unit: Unit) -> tuple[int | slice, ...]:
    """Return where a unit stands in an array with axes (*configuration grid, rates, seeds)."""
    index: list[int | slice] = [slice(None)] * (len(task.space) + 2)
    axis = task.space.names.index("batch_size")
    position = task.space["batch_size"].grid.index(unit.batch_size)
    index[axis] = slice(position, position + 1)
    index[-1] = task.seeds.index(unit.seed)
    return tuple(index)
