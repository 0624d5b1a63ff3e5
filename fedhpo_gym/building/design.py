"""What a build computes: a design lists courses in units, and stores what became of them.

`Design` is the interface that `building/build.py` works with; `GridDesign` is that of a table, and
`building/sample.py` has that of a sample. A unit is an `.npz` file of the metrics of its courses,
with a digest (`write_unit`, `read_unit`), in a folder whose name has the digest of the plan: units
of another engine or data set are never mixed in. `consolidate` encodes the curves of all units
(`encode_curves`) and writes one archive. `write_with_health` adds the figures of
`stored/health.py`, and replaces a former archive only when everything is there.
"""

import datetime
import hashlib
import itertools
import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import training
from fedhpo_gym.core import archive
from fedhpo_gym.core.archive import read_npz
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import max_bytes, new_file, read_json
from fedhpo_gym.core.identity import BUILT_TABLE
from fedhpo_gym.core.processor import rounding_platform, version_of
from fedhpo_gym.data import get_source, load_dataset
from fedhpo_gym.evaluation.records import best_rounds
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.health import LABELS, SEED_LABELS, write_health
from fedhpo_gym.stored.table import WHICH, write_table
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
        return self.task.evaluated_rounds

    def read(self, parts: Path, name: str, courses: int) -> dict[str, NDArray[Any]]:
        """Return the results of a stored unit, checked."""
        splits, metrics = self.axes
        axes = (self.task.num_clients, len(splits), len(metrics))
        return read_unit(parts, name, courses, self.evaluated_rounds(name), axes)

    @abstractmethod
    def consolidate(self, parts: Path, folder: Path) -> Path:
        """Write what the stored units hold into one file, and return the path of its card."""

    @property
    def axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the splits and of the metrics of every curve; cards hold them, too."""
        return self.task.splits, self.task.metric_names

    def plan(self) -> dict[str, Any]:
        """Return everything that decides a course's numbers; a resumed build must have the same."""
        task = self.task
        if task.table != BUILT_TABLE:
            raise InvalidArgumentError(
                f"`table` must be {BUILT_TABLE!r} where results are computed, got {task.table!r}: "
                f"run `{task.identity.command}`"
            )
        if task.asynchronous:
            raise InvalidArgumentError(
                f"`algorithm` must be synchronous where results are stored, got "
                f"{task.algorithm!r}, whose courses depend on the clock; use backend='raw'"
            )
        return {
            "name": task.table_name,
            "engine_version": training.engine_version(task),
            "data_fingerprint": self.data_fingerprint,
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

    @cached_property
    def data_fingerprint(self) -> str:
        """Fingerprint of the data set, which is loaded for it."""
        return load_dataset(self.task.dataset).fingerprint

    @property
    def parts_name(self) -> str:
        """Name of the folder of the units' results: another plan has another folder."""
        digest = hashlib.sha256(json.dumps(self.plan(), sort_keys=True).encode()).hexdigest()[:12]
        return "-".join(filter(None, (self.task.table_name, self.kind, digest)))


def shared_axes(task: Task) -> tuple[str, ...]:
    """Return the hyperparameters in which courses must agree for the engine to share work."""
    groups = ("batch_size", *task.architecture)
    return tuple(name for name in task.space.names if name in groups)


ARRAYS = ("metrics", "rounds", "diverged_at", "hardware")
DIGEST = "digest"


def write_unit(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the results of a unit with a digest of their content."""
    with new_file(folder / f"{name}.npz") as handle:
        digest = np.array(_digest(name, arrays))
        np.savez_compressed(handle, allow_pickle=False, **{**arrays, DIGEST: digest})


def read_unit(
    folder: Path, name: str, courses: int, rounds: tuple[int, ...], axes: tuple[int, int, int]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored unit: courses, evaluated after some rounds.

    An evaluation has the axes clients, splits and metrics.
    """
    shapes = {
        "metrics": (courses, len(rounds), *axes),
        "rounds": (len(rounds),),
        "diverged_at": (courses,),
        "hardware": (),
    }
    path = folder / f"{name}.npz"
    max_bytes()  # a wrong variable is no damage
    try:
        with path.open("rb") as handle:
            arrays = read_npz(handle, f"what is in {path}")
        _check_unit(name, arrays, shapes, rounds)
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


def _check_unit(
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    rounds: tuple[int, ...],
) -> None:
    """Compare what is in a file with what must be there."""
    stored_shapes = {key: array.shape for key, array in arrays.items() if key != DIGEST}
    if stored_shapes != shapes:
        raise ValueError(f"it holds arrays of the shapes {stored_shapes}, expected {shapes}")
    if str(arrays.get(DIGEST, "")) != _digest(name, arrays):
        raise ValueError(f"its digest is not that of the results of unit {name!r}")
    kinds = "".join(arrays[key].dtype.kind for key in ARRAYS)
    if kinds != "fiiU" or not np.isfinite(arrays["metrics"]).all():
        raise ValueError("its metrics must be finite numbers, its rounds integers")
    if tuple(arrays["rounds"].tolist()) != rounds:
        raise ValueError(f"it was evaluated after other rounds than {rounds}")
    at = arrays["diverged_at"]
    if at.size and not 0 <= at.min() <= at.max() <= rounds[-1]:
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
    where = np.searchsorted(rounds, stored, "right") - 1  # the last at or before
    best = best_rounds(metrics, samples)[:, where]
    yield "best_round", rounds[best].astype(np.uint16)
    courses = np.arange(len(metrics))[:, None]
    for which, index in (("best", best), ("current", where[None, :])):
        values = metrics[courses, index]
        for s, split in enumerate(splits):
            for m, metric in enumerate(names):
                codes = codec.encode(metric, values[..., s, m], samples[:, s])
                yield f"{which}_{split}_{metric}", codes


def client_samples(task: Task) -> NDArray[np.int64]:
    """Return the (seeds, clients, splits) samples of a task."""
    return np.stack([training.task_federation(task, seed).num_samples for seed in task.seeds])


def provenance(task: Task, samples: NDArray[np.int64], hardware: set[str]) -> dict[str, Any]:
    """Return what the card of any design says of measures, data, licence, software, machines."""
    source, data = get_source(task.dataset), load_dataset(task.dataset)
    return {
        "splits": list(task.splits),
        "metrics": list(task.metric_names),
        "num_samples": samples.tolist(),
        **dict(zip((LABELS, SEED_LABELS), training.task_label_frequencies(task), strict=True)),
        "class_shares": (np.bincount(data.labels) / len(data.labels)).tolist(),
        "codes": codec.DESCRIPTION,
        "data_licence": source.licence,
        "data_citation": source.citation,
        "problem_citation": task.citation,
        "licence": "Apache-2.0",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": "; ".join(sorted(hardware)),
        "software": versions("numpy", "numba", "torch"),
    }


def versions(*names: str) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    return {name: release for name in names if (release := version_of(name))}


def this_machine(device: str, verdict: str = "") -> str:
    """Return in words what computes here, and what was found when its laws were tried."""
    here = rounding_platform()
    parts = (here.get(name) for name in ("machine", "processor", "vectors", "settings"))
    description = ", ".join(filter(None, (*parts, verdict)))
    if device == "cpu":
        return description
    from fedhpo_gym.fl.torch_trainer import device_name

    return f"{description}, torch {version_of('torch')} on {device_name(device)}"


@dataclass(frozen=True)
class GridUnit:
    """The part of a grid that is computed, stored and resumed as one."""

    seed: int  # seed of all its courses
    # name and value of the hyperparameters that all its courses share.
    fixed: tuple[tuple[str, Value], ...]

    @property
    def name(self) -> str:
        """File stem of the unit's results: its seed, and the values that its courses share."""
        labels = (f"{name.removesuffix('_size')}{value}" for name, value in self.fixed)
        return "-".join([f"seed{self.seed}", *labels])


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
            cells = math.prod(len(d.grid) for d in self.space.dimensions if d.name not in cut)
            if cells * rates * self.task.num_parameters <= UNIT_NUMBERS:
                break
            cut.add(name)
        return [name for name in self.space.names if name in cut]

    def courses(self, unit: GridUnit) -> list[Course]:
        """Return the courses in grid order: configurations, then client sample rates."""
        fixed = dict(unit.fixed)
        axes = [(fixed[d.name],) if d.name in fixed else d.grid for d in self.space.dimensions]
        return [
            training.make_course(
                self.task, dict(zip(self.space.names, values, strict=True)), float(rate), unit.seed
            )
            for values in itertools.product(*axes)
            for rate in self.task.fidelity_space["client_sample_rate"].grid
        ]

    def positions(self, unit: GridUnit) -> tuple[int, ...]:
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
        card = self._card(samples, arrays, hardware)
        return write_with_health(folder, lambda part_folder: write_table(part_folder, card, arrays))

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


def write_with_health(
    folder: Path,
    write: Callable[[Path], Path],
    beside: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Path:
    """Write a card, its arrays and their health, and replace others only when all are there.

    Args:
        folder: where they belong.
        write: writes card and arrays into a folder, and returns the card.
        beside: called with the digest of the card; others are replaced in the body that it opens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part_folder:
        card = write_health(write(Path(part_folder)))
        with beside(read_json(card)[archive.DIGEST_ENTRY]):
            return archive.move_archive(card, folder)
