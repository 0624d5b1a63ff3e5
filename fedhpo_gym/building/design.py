"""What a build computes: a design lists courses in units, and stores what became of them."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from fedhpo_gym.building.units import UnitShape, read_unit
from fedhpo_gym.courses.training import engine_version
from fedhpo_gym.datasets import load_dataset
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import Task


class Unit(Protocol):
    """Courses that are computed, stored and resumed as one."""

    @property
    def name(self) -> str:
        """File stem of the unit's results."""


U = TypeVar("U", bound=Unit)

UNIT_NUMBERS = 5_000_000
"""Parameters of all courses of a unit: few enough that a unit of a large model takes minutes."""


class Design(ABC, Generic[U]):
    """The courses of a build, in units.

    Attributes:
        kind: how parts folders tell designs apart; empty for the grid.
        task: the task; its fidelity space says how far courses are trained, and with which rates.
        horizon: rounds of the whole courses of the problem, for which algorithms plan their noise.
    """

    kind: ClassVar[str]
    task: Task
    horizon: int

    @property
    @abstractmethod
    def space(self) -> SearchSpace:
        """The configurations that the design may hold."""

    @abstractmethod
    def units(self) -> list[U]:
        """Return all units, in the order in which they are to be computed."""

    @abstractmethod
    def courses(self, unit: U) -> list[Course]:
        """Return the courses of a unit, in the order in which they are stored."""

    @abstractmethod
    def positions(self, unit: U) -> Sequence[int]:
        """Return numbers of what a unit holds; units with a number in common do the same work."""

    def is_stored(self, unit: U, parts: Path) -> bool:
        """Return whether a folder holds the results of a unit."""
        return (parts / f"{unit.name}.npz").exists()

    @abstractmethod
    def missing(self, parts: Path) -> list[U]:
        """Return what has no stored result in a folder yet."""

    @abstractmethod
    def stored(self, parts: Path) -> Mapping[str, int]:
        """Return the units in a folder, whole or damaged: how many courses each name stands for."""

    def evaluated_rounds(self, name: str) -> tuple[int, ...]:
        """Return the rounds after which the courses of a unit are evaluated; trained to the last.

        Args:
            name: name of the unit.
        """
        del name
        return self.task.evaluated_rounds

    def read(self, parts: Path, name: str, courses: int) -> dict[str, NDArray[Any]]:
        """Return the results of a stored unit, checked.

        Raises:
            DamagedDataError: they are damaged, or those of something else.
            TooLargeError: they are larger than may be read.
        """
        splits, metrics = self.axes
        axes = (self.task.num_clients, len(splits), len(metrics))
        return read_unit(parts, name, UnitShape(courses, self.evaluated_rounds(name), axes))

    @abstractmethod
    def consolidate(self, parts: Path, folder: Path) -> Path:
        """Write what the stored units hold into one file, and return the path of its card."""

    @property
    def axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the splits and of the metrics of every curve; cards hold them, too."""
        return self.task.splits, self.task.metric_names

    def card_axes(self) -> dict[str, list[str]]:
        """Return what cards say of `axes`."""
        splits, metrics = self.axes
        return {"splits": list(splits), "metrics": list(metrics)}

    def plan(self) -> dict[str, Any]:
        """Return everything that decides a course's numbers; a resumed build must have the same.

        Raises:
            InvalidArgumentError: the task's algorithm is asynchronous.
        """
        task = self.task
        if task.asynchronous:
            raise InvalidArgumentError(
                f"`algorithm` must be synchronous where results are stored, got "
                f"{task.algorithm!r}, whose courses depend on the clock; use backend='raw'"
            )
        return {
            "name": task.table_name,
            "engine_version": engine_version(task),
            "data_fingerprint": load_dataset(task.dataset).fingerprint,
            "space": self.space.to_dict(),
            "rounds_trained": task.max_round,
            "client_sample_rates": list(task.fidelity_space["client_sample_rate"].grid),
            "seeds": list(task.seeds),
            "num_clients": task.num_clients,
            "algorithm": task.algorithm,
            "alpha": task.alpha,
            "preprocessing": task.preprocessing,
            **({} if task.precision == "float32" else {"precision": task.precision}),
            **({"settings": settings} if (settings := task.all_settings) else {}),
        }

    @property
    def parts_name(self) -> str:
        """Name of the folder of the units' results: another plan has another folder."""
        text = json.dumps(self.plan(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return "-".join(filter(None, (self.task.table_name, self.kind, digest)))


def shared_axes(task: Task) -> tuple[str, ...]:
    """Return the hyperparameters in which courses must agree for the engine to share work."""
    groups = ("batch_size", *task.architecture)
    return tuple(name for name in task.space.names if name in groups)
