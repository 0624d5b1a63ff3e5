"""The design of a table: every configuration of the grid, with every rate and seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import make_course
from fedhpo_gym.building.design import UNIT_NUMBERS, Design, encode_curves, shared_axes
from fedhpo_gym.building.provenance import client_samples, provenance
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.health_cards import write_health
from fedhpo_gym.stored.table import WHICH, write_table
from fedhpo_gym.tasks import Task


@dataclass(frozen=True)
class GridUnit:
    """The part of a grid that is computed, stored and resumed as one."""

    seed: int  # seed of all its courses
    # name and value of the hyperparameters that all its courses share.
    fixed: tuple[tuple[str, Value], ...]

    @property
    def name(self) -> str:
        """File stem of the unit's results: its seed, and the values that its courses share."""
        words = (f"{name.removesuffix('_size')}{value}" for name, value in self.fixed)
        return "-".join([f"seed{self.seed}", *words])


class GridDesign(Design[GridUnit]):
    """Every configuration of a task's grid, with every client sample rate and seed."""

    kind = ""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.horizon = task.max_round

    @property
    def space(self) -> SearchSpace:
        return self.task.space.discretized()

    def units(self) -> list[GridUnit]:
        """Return all units, the longest first (smaller batches take more steps)."""
        names = self._axes()
        return [
            GridUnit(seed, tuple(zip(names, values, strict=True)))
            for values in itertools.product(*(self.space[name].grid for name in names))
            for seed in self.task.seeds
        ]

    def _axes(self) -> list[str]:
        """Return the axes along which the grid is cut: what courses share, then what must be."""
        cut = set(shared_axes(self.task))
        rates = len(self.task.fidelity_space["client_sample_rate"].grid)
        for name in reversed(self.space.names):
            left = math.prod(len(d.grid) for d in self.space.dimensions if d.name not in cut)
            if left * rates * self.task.num_parameters <= UNIT_NUMBERS:
                break
            cut.add(name)
        return [name for name in self.space.names if name in cut]

    def courses(self, unit: GridUnit) -> list[Course]:
        """Return the courses in grid order: configurations, then client sample rates."""
        fixed = dict(unit.fixed)
        axes = [(fixed[d.name],) if d.name in fixed else d.grid for d in self.space.dimensions]
        return [
            make_course(
                self.task, dict(zip(self.space.names, values, strict=True)), float(rate), unit.seed
            )
            for values in itertools.product(*axes)
            for rate in self.task.fidelity_space["client_sample_rate"].grid
        ]

    def positions(self, unit: GridUnit) -> tuple[int, ...]:
        """Return the place of the unit among all."""
        return (self.units().index(unit),)

    def missing(self, parts: Path) -> list[GridUnit]:
        return [unit for unit in self.units() if not self.is_stored(unit, parts)]

    def stored(self, parts: Path) -> dict[str, int]:
        units = [unit for unit in self.units() if self.is_stored(unit, parts)]
        return {unit.name: math.prod(self.shape(unit)) for unit in units}

    def shape(self, unit: GridUnit) -> tuple[int, ...]:
        """Return the shape of a unit's courses: the grid, 1 where it is fixed, then the rates."""
        fixed = dict(unit.fixed)
        axes = [1 if d.name in fixed else len(d.grid) for d in self.space.dimensions]
        return (*axes, len(self.task.fidelity_space["client_sample_rate"].grid))

    def place(self, unit: GridUnit) -> tuple[int | slice, ...]:
        """Return where a unit stands in an array with axes (*configuration grid, rates, seeds)."""
        index: list[int | slice] = [slice(None)] * (len(self.space) + 2)
        for name, value in unit.fixed:
            position = self.space[name].grid.index(value)
            index[self.space.names.index(name)] = slice(position, position + 1)
        index[-1] = self.task.seeds.index(unit.seed)
        return tuple(index)

    def consolidate(self, parts: Path, folder: Path) -> Path:
        """Write the table; every unit must be there."""
        samples = client_samples(self.task)
        arrays = self._empty_arrays(samples)
        hardware = set()
        for unit in self.units():
            stored = self.read(parts, unit.name, math.prod(self.shape(unit)))
            self._fill(arrays, unit, stored, samples[self.task.seeds.index(unit.seed)])
            hardware.add(str(stored["hardware"]))
        return write_health(write_table(folder, self._card(samples, arrays, hardware), arrays))

    def _empty_arrays(self, samples: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        stored = self.task.stored_fidelity_space()
        seeds = len(self.task.seeds)
        grid = (*self.space.grid_shape, len(stored["client_sample_rate"].grid))
        shape = (len(stored["round"].grid), *grid, seeds)
        arrays: dict[str, NDArray[Any]] = {
            "best_round": np.zeros(shape, np.uint16),
            "diverged_at": np.zeros((*grid, seeds), np.uint16),
        }
        splits, metrics = self.axes
        for which, (s, split), metric in itertools.product(WHICH, enumerate(splits), metrics):
            dtype = codec.dtype(metric, samples[:, :, s])
            arrays[f"{which}_{split}_{metric}"] = np.zeros((*shape, samples.shape[1]), dtype)
        return arrays

    def _fill(
        self,
        arrays: Mapping[str, NDArray[Any]],
        unit: GridUnit,
        stored: Mapping[str, NDArray[Any]],
        samples: NDArray[np.int64],
    ) -> None:
        where, grid = self.place(unit), self.shape(unit)
        arrays["diverged_at"][where] = stored["diverged_at"].reshape(grid)
        rounds = np.array(self.task.stored_fidelity_space()["round"].grid)
        for name, codes in encode_curves(
            stored["metrics"], stored["rounds"], rounds, samples, self.axes
        ):
            by_round = codes.swapaxes(0, 1)  # (rounds, courses, ...)
            shape = (len(rounds), *grid, *codes.shape[2:])
            arrays[name][:, *where] = by_round.reshape(shape)

    def _card(
        self, samples: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]], hardware: set[str]
    ) -> dict[str, Any]:
        task = self.task
        fidelity = task.stored_fidelity_space()
        return {
            **self.plan(),
            **task.identity.to_card(),
            **self.card_axes(),
            "fidelity_space": fidelity.to_dict(),
            "axes": ["round", *task.space.names, "client_sample_rate", "seed", "client"],
            "diverged_courses": int((arrays["diverged_at"] > 0).sum()),
            "missing": "nothing"
            if len(fidelity["round"].grid) == task.max_round
            else "rounds that are not in the fidelity grid; best rounds were chosen among all "
            "rounds",
            "build_command": f"fedhpo-gym build {task.identity.arguments}",
            **provenance(task, samples, hardware),
        }
