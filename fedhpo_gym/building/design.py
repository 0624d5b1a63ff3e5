"""What a build computes: a design lists courses in units, and stores what became of them."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import engine_version
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import max_bytes, new_file
from fedhpo_gym.core.npz import read_npz
from fedhpo_gym.data import load_dataset
from fedhpo_gym.evaluation.records import best_rounds
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored import codec
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
    """The courses of a build, in units."""

    kind: ClassVar[str]  # how parts folders tell designs apart; empty for the grid
    task: Task  # its fidelity space says how far courses are trained, at which rates
    horizon: int  # rounds of whole courses, for which algorithms plan their noise

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
        """Return the rounds after which courses of a unit are evaluated; they train to the last."""
        del name
        return self.task.evaluated_rounds

    def read(self, parts: Path, name: str, courses: int) -> dict[str, NDArray[Any]]:
        """Return the results of a stored unit, checked."""
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
        """Return everything that decides a course's numbers; a resumed build must have the same."""
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


ARRAYS = ("metrics", "rounds", "diverged_at", "hardware")
DIGEST = "digest"


@dataclass(frozen=True)
class UnitShape:
    """What the results of a unit must be like."""

    courses: int  # number of courses
    rounds: tuple[int, ...]  # the rounds after which they were evaluated
    axes: tuple[int, int, int]  # clients, splits and metrics of an evaluation

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays."""
        return {
            "metrics": (self.courses, len(self.rounds), *self.axes),
            "rounds": (len(self.rounds),),
            "diverged_at": (self.courses,),
            "hardware": (),
        }


def write_unit(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the results of a unit with a digest of their content."""
    with new_file(folder / f"{name}.npz") as handle:
        digest = np.array(_digest(name, arrays))
        np.savez_compressed(handle, allow_pickle=False, **{**arrays, DIGEST: digest})


def read_unit(folder: Path, name: str, shape: UnitShape) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored unit."""
    path = folder / f"{name}.npz"
    max_bytes()  # a wrong variable is no damage
    try:
        with path.open("rb") as handle:
            arrays = read_npz(handle, f"what is in {path}")
        _check(name, arrays, shape)
    except TooLargeError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error}); delete it and run the same build again"
        ) from error
    return arrays


def _digest(name: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(name.encode("utf-8"))
    for key in ARRAYS:
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"\n{key} {array.dtype.str} {np.shape(arrays[key])}\n".encode())
        digest.update(array.view(np.uint8).data)
    return digest.hexdigest()


def _check(name: str, arrays: Mapping[str, NDArray[Any]], shape: UnitShape) -> None:
    """Compare what is in a file with what must be there."""
    found = {key: array.shape for key, array in arrays.items() if key != DIGEST}
    if found != shape.arrays:
        raise ValueError(f"it holds arrays of the shapes {found}, expected {shape.arrays}")
    if str(arrays.get(DIGEST, "")) != _digest(name, arrays):
        raise ValueError(f"its digest is not that of the results of unit {name!r}")
    kinds = "".join(arrays[key].dtype.kind for key in ARRAYS)
    if kinds != "fiiU" or not np.isfinite(arrays["metrics"]).all():
        raise ValueError("its metrics must be finite numbers, its rounds integers")
    if tuple(arrays["rounds"].tolist()) != shape.rounds:
        raise ValueError(f"it was evaluated after other rounds than {shape.rounds}")
    at = arrays["diverged_at"]
    if at.size and not 0 <= at.min() <= at.max() <= shape.rounds[-1]:
        raise ValueError("`diverged_at` must be rounds, or 0")


def encode_curves(
    metrics: NDArray[np.floating],
    rounds: NDArray[np.int64],
    stored: NDArray[np.int64],
    samples: NDArray[np.int64],
    axes: tuple[Sequence[str], Sequence[str]],
) -> Iterator[tuple[str, NDArray[np.unsignedinteger]]]:
    """Yield name and codes of every array, for the courses of one seed.

    Shapes: `metrics` (courses, evaluated rounds, clients, splits, metrics); `rounds` (evaluated
    rounds,); `samples` (clients, splits).
    """
    splits, names = axes
    if metrics.shape[-2:] != (len(splits), len(names)):
        raise InvalidArgumentError(
            f"`axes` must name {metrics.shape[-2]} splits and {metrics.shape[-1]} metrics, which "
            f"were measured of every course, got {axes!r}; see `Problem.metrics`"
        )
    where = np.searchsorted(rounds, stored)
    best = best_rounds(metrics, samples)[:, where]
    yield "best_round", rounds[best].astype(np.uint16)
    courses = np.arange(len(metrics))[:, None]
    for which, index in (("best", best), ("current", where[None, :])):
        values = metrics[courses, index]
        for s, split in enumerate(splits):
            for m, metric in enumerate(names):
                codes = codec.encode(metric, values[..., s, m], samples[:, s])
                yield f"{which}_{split}_{metric}", codes
