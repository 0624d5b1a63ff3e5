"""Tables and samples: a card (JSON), and lazily read arrays of codes (npz) of learning curves.

A table holds all courses of a grid, and rounds are the first axis of its arrays. In a sample, they
are anywhere in a space: `configuration` (courses, hyperparameters; the position of a category, NaN
where a dimension is not active), `client_sample_rate`, `seed` (position among the seeds) and
`point` (number in the design's sequence) say what the courses are. Arrays named
`<which>_<split>_<metric>` have the axes (courses, rounds, clients); `best_round` and `diverged_at`
lack the clients, the latter also the rounds.

Where courses were trained for different rounds, `last_round` (courses,) says how far each got. The
codes beyond repeat the last ones, so that they take no room; they are no data.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import DIGEST_ENTRY, StoredArrays, checked_card, write_archive
from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.checks import as_integer, coerce
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import (
    Evaluation,
    Evaluations,
    Fidelity,
    axis_index,
    query_columns,
)
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.curve_coder import ENTRY, WORDS, CurveLayout, Packing, pack, unpack

WHICH = ("best", "current")
FORMAT = 2
"""The format of cards."""
LACKS = "lacks"
"""Entry of a card: what its numbers do not say, and why."""
FORMER = "former_sha256"
"""Entry of a card: checksums that stood for the same numbers before they were packed."""


class StoredCurves(ABC):
    """Learning curves of many courses, as codes.

    Attributes:
        card: everything but the numbers.
        identity: the variant of a problem that they belong to.
        name: stem of its files.
        space: the configurations.
        fidelity_space: the stored rounds and the client sample rates.
        rates: client sample rates.
        seeds: seeds of the repetitions.
        rounds: rounds whose results are stored.
        num_samples: (seeds, clients, splits) samples.
        splits: parts of the data, in the order of the axes that have them.
        metrics: names of what was measured, in the order of the axes that have them.
        sha256: checksum of the arrays.
        digest: checksum of everything that decides a number, in the card and in the arrays.
        lacks: what was not measured, and why; what stands in its place is the worst there is.
        former: checksums that older records, and surrogates fitted on it, may name it by.
    """

    axis: ClassVar[int]  # which axis of the curves counts rounds

    def __init__(self, content: dict[str, Any], arrays: StoredArrays) -> None:
        self._arrays = arrays
        self.card: Mapping[str, Any] = MappingProxyType(content)
        self.identity = Identity.from_card(content)
        self.name = self.identity.name
        self.space = SearchSpace.from_dict(content["space"])
        self.fidelity_space = SearchSpace.from_dict(content["fidelity_space"])
        self.rounds = tuple(int(r) for r in self.fidelity_space["round"].grid)
        self.rates = tuple(float(r) for r in self.fidelity_space["client_sample_rate"].grid)
        self.splits: tuple[str, ...] = tuple(coerce("splits", content["splits"], Sequence[str]))
        self.metrics: tuple[str, ...] = tuple(coerce("metrics", content["metrics"], Sequence[str]))
        self.seeds, self.num_samples = seeds_and_samples(content, len(self.splits))
        self.sha256: str = content["sha256"]
        self.digest: str = content[DIGEST_ENTRY]
        self.former: tuple[str, ...] = (
            self.sha256,
            *coerce(FORMER, content.get(FORMER, []), Sequence[str]),
        )
        self.lacks: Mapping[str, str] = coerce(LACKS, content.get(LACKS, {}), Mapping[str, str])
        self._repair: str = content["build_command"]

    def require_installed(self) -> Self:
        """Return the same, whose arrays are on this machine."""
        self._arrays.require_installed()
        return self

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all arrays, as the card calls for them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(self._shapes())

    def _layout(self) -> CurveLayout:
        """Return the layout of the curves from the card."""
        return layout_of(self.card, self._shapes()["best_round"], self.axis)

    @abstractmethod
    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> Integers:
        """Return the position of every cell's seed among the seeds."""

    def _packing(self) -> Packing:
        """Return how the curves are packed."""
        return Packing.from_card(self.card[ENTRY], self._layout())

    def _curve_shapes(self, courses: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all curves, and of the best rounds."""
        clients = self.num_samples.shape[1]
        kinds = itertools.product(WHICH, self.splits, self.metrics)
        curves = {"_".join(kind): (*courses, clients) for kind in kinds}
        return {**curves, "best_round": courses}

    @cached_property
    def _packed(self) -> Mapping[str, NDArray[Any]]:
        """What is in the file, verified: arrays as they are, and the curves packed."""
        layout = self._layout()
        shapes = {name: x for name, x in self._shapes().items() if name not in layout.names}
        declared = shapes | self._packing().shapes(layout)
        arrays = self._arrays.read(self.sha256, self._repair, declared)
        with self._naming_damage():
            _require_codes(arrays)
            self._cell_seeds(arrays)  # refuses seeds that there are not
        return arrays

    @cached_property
    def _codes(self) -> Mapping[str, NDArray[Any]]:
        """All arrays, unpacked."""
        arrays, path = self._packed, self._arrays.path
        with self._naming_damage():
            seeds = self._cell_seeds(arrays)
            return unpack(arrays, self._layout(), seeds, self._packing(), path)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Name the file, and what to do, where its content is refused."""
        try:
            yield
        except TooLargeError:
            raise
        except ValueError as error:
            raise DamagedDataError(
                f"{self._arrays.path}: {error}; delete it and run `{self._repair}`"
            ) from error

    def codes(self, name: str) -> NDArray[Any]:
        """Return a stored array as it is; only curves have to be unpacked for it."""
        if name not in self.names:
            raise InvalidArgumentError(f"no array {name!r}; there are {sorted(self.names)}")
        return (self._packed if name in self._packed else self._codes)[name]

    def split_samples(self, split: str) -> Integers:
        """Return (seeds, clients) samples of a split."""
        return self.num_samples[:, :, axis_index("split", split, self.splits)]

    def decoded(self, which: str, split: str, metric: str, samples: Integers) -> Singles:
        """Return one metric of all courses; `samples` must be broadcastable to its codes."""
        return codec.decode(metric, self.codes(f"{which}_{split}_{metric}"), samples)


def _require_codes(arrays: Mapping[str, NDArray[Any]]) -> None:
    for name in ("best_round", "diverged_at"):
        if arrays[name].dtype.kind != "u":
            raise ValueError(f"{name!r} must hold codes, got {arrays[name].dtype}")


def layout_of(content: Mapping[str, Any], shape: tuple[int, ...], axis: int) -> CurveLayout:
    """Return the layout of the curves of a card."""
    rounds = SearchSpace.from_dict(content["fidelity_space"])["round"].grid
    return CurveLayout(
        shape,
        axis,
        (axis,) if axis else tuple(range(len(shape) - 1)),
        tuple(int(r) for r in rounds),
        np.array(content["num_samples"], np.int64),
        tuple(content["splits"]),
        tuple(content["metrics"]),
    )


def write_curves(
    folder: Path,
    stem: str,
    card: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    axis: int,
    seeds: Integers,
) -> Path:
    """Write packed arrays, always the same bytes, then their card."""
    members, packing = pack(arrays, layout_of(card, arrays["best_round"].shape, axis), seeds)
    entries = {**card, "format": FORMAT, ENTRY: packing.to_card()}
    return write_archive(folder, stem, entries, members, {WORDS})


def seeds_and_samples(content: Mapping[str, Any], splits: int) -> tuple[tuple[int, ...], Integers]:
    """Return the seeds on a card, and the (seeds, clients, splits) samples."""
    seeds = tuple(content["seeds"])
    if not seeds or any(as_integer(seed) is None for seed in seeds) or len({*seeds}) < len(seeds):
        raise ValueError(f"`seeds` must be integers that differ, got {seeds!r}")
    samples = np.array(content["num_samples"])
    if samples.dtype.kind != "i" or samples.ndim != 3 or samples.min(initial=0) < 0:
        raise ValueError("`num_samples` must be counts with the axes seeds, clients, splits")
    if not samples.size or samples.shape[::2] != (len(seeds), splits):
        raise ValueError(
            f"`num_samples` must have {len(seeds)} seeds and {splits} splits, got the shape "
            f"{samples.shape}"
        )
    return seeds, samples.astype(np.int64)


def seed_rows(seeds: tuple[int, ...], stored_seeds: Sequence[int], what: str) -> Integers:
    """Return where some seeds are among those that something knows."""
    unknown = [seed for seed in seeds if seed not in stored_seeds]
    if unknown or not seeds:
        raise InvalidArgumentError(
            f"`seeds` must be among {stored_seeds}, the seeds of {what}, got {unknown or seeds}; "
            'use one of them or backend="raw"'
        )
    return np.array([stored_seeds.index(seed) for seed in seeds], dtype=np.int64)


class Table(StoredCurves):
    """Learning curves of every course of a grid."""

    axis = 0

    def __init__(self, card: Path, command: str = "fedhpo-gym build ID") -> None:
        with checked_card(card, "table", FORMAT, f"run `{command}`") as (content, arrays):
            super().__init__(content, arrays)
            self._packing()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        grid = (*self.space.grid_shape, len(self.rates), len(self.seeds))
        return {**self._curve_shapes((len(self.rounds), *grid)), "diverged_at": grid}

    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> Integers:
        return _cell_seeds(arrays["best_round"].shape)

    def values(self, which: str, split: str, metric: str) -> Singles:
        """Return one metric of all courses: (rounds, *grid, rates, seeds, clients) float32."""
        return self.decoded(which, split, metric, self.split_samples(split))

    def objective(self, split: str = "val", metric: str = "loss") -> Floats:
        """Return f for the whole grid: (rounds, *grid, rates, seeds), weighted over clients."""
        samples = self.split_samples(split)
        weights = samples / samples.sum(axis=1, keepdims=True)
        values = self.values("best", split, metric)
        return np.asarray(np.einsum("...sc,sc->...s", values, weights), dtype=np.float64)

    def evaluate(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seeds: tuple[int, ...]
    ) -> Evaluation:
        """Look one evaluation up; what is off the grid, or of another seed, is an error."""
        query = self.space.validate(configuration), fidelity
        self.fidelity_space.validate(vars(fidelity))
        return self.look_up(query_columns(self.space, [query]), seeds)[0]

    def look_up(self, columns: Mapping[str, NDArray[Any]], seeds: tuple[int, ...]) -> Evaluations:
        """Look up (B,) columns of values by dimension; off the grid is an error."""
        cells = self._cells(columns)
        rows = seed_rows(seeds, self.seeds, f"table {self.name}")
        diverged_at = self.codes("diverged_at")[cells[1:]].take(rows, axis=-1)
        rounds = np.asarray(self.rounds)[cells[0]]
        return Evaluations(
            self._metrics("best", cells, rows),
            self.num_samples[rows],
            self.codes("best_round")[cells][:, rows].astype(np.int64),
            (diverged_at > 0) & (diverged_at <= rounds[:, None]),
            np.array(seeds),
            columns,
            lambda: self._metrics("current", cells, rows),
        )

    def _cells(self, columns: Mapping[str, NDArray[Any]]) -> tuple[Integers, ...]:
        """Return the places of (B,) values on every axis; exact grid points need no check."""
        cells = []
        for dimension, index_of in self._axes:
            values = columns[dimension.name].tolist()
            if not index_of.keys() >= {*values}:  # close to a grid point, or on none
                index_of = {value: dimension.index(value) for value in {*values}}
            cells.append(np.array([index_of[value] for value in values], dtype=np.int64))
        return tuple(cells)

    @cached_property
    def _axes(self) -> list[tuple[Dimension, dict[Value, int]]]:
        """The dimensions of the axes, each with the places of its grid points."""
        fidelity = self.fidelity_space
        axes = (fidelity["round"], *self.space.dimensions, fidelity["client_sample_rate"])
        return [
            (dimension, {value: index for index, value in enumerate(dimension.grid)})
            for dimension in axes
        ]

    def _metrics(self, which: str, cells: tuple[Integers, ...], rows: Integers) -> Singles:
        codes, samples = self._stacked[which][cells].take(rows, axis=-4), self.num_samples[rows]
        out = np.empty(codes.shape, dtype=np.float32)
        for m, metric in enumerate(self.metrics):
            out[..., m] = codec.decode(metric, codes[..., m], samples)
        return out

    @cached_property
    def _stacked(self) -> dict[str, NDArray[np.uint16]]:
        """The codes of all metrics side by side: (..., clients, splits, metrics)."""
        return {
            which: np.stack(
                [
                    np.stack(
                        [self.codes(f"{which}_{s}_{m}") for m in self.metrics], -1, dtype=np.uint16
                    )
                    for s in self.splits
                ],
                axis=-2,
            )
            for which in WHICH
        }


def write_table(folder: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write the arrays of a table, then its card, and return the path of the card."""
    seeds = _cell_seeds(arrays["best_round"].shape)
    return write_curves(folder, f"{card['name']}.table", card, arrays, Table.axis, seeds)


def _cell_seeds(shape: tuple[int, ...]) -> Integers:
    """Return the position of every cell's seed, whose axis is the last."""
    return np.tile(np.arange(shape[-1]), math.prod(shape[:-1]))


LAST_ROUND = "last_round"
ENDS = "courses_by_last_round"
"""Entry of a card: how many courses end at which round, where not all end at the last."""
CROSSED = "crossed"
"""Entry of a card: whether every configuration was trained at all rates under the first seed."""
SUFFIX = ".sample"


class Sample(StoredCurves):
    """Learning curves of courses that fill a space evenly; not all need have all rounds."""

    axis = 1

    def __init__(self, card: Path, command: str = "fedhpo-gym build ID --sample N") -> None:
        with checked_card(card, "sample", FORMAT, f"run `{command}`") as (content, arrays):
            super().__init__(content, arrays)
            self._count: int = content["courses"]
            if as_integer(self._count) is None or self._count < 1:
                raise ValueError(f"`courses` must be a positive integer, got {self._count!r}")
            self._ragged = ENDS in content
            self.crossed = coerce(CROSSED, content.get(CROSSED, False), bool)
            self._packing()

    def __len__(self) -> int:
        """Return the number of courses."""
        return self._count

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        courses = (self._count,)
        return {
            **self._curve_shapes((*courses, len(self.rounds))),
            "configuration": (*courses, len(self.space)),
            **dict.fromkeys(("client_sample_rate", "seed", "point", "diverged_at"), courses),
            **({LAST_ROUND: courses} if self._ragged else {}),
        }

    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> Integers:
        positions = arrays["seed"]
        if positions.dtype.kind not in "iu" or not np.isin(positions, range(len(self.seeds))).all():
            raise ValueError(f"'seed' must hold positions among {len(self.seeds)} seeds")
        return np.repeat(positions, len(self.rounds))

    def configurations(self) -> list[dict[str, Value]]:
        """Return the configuration of every course."""
        rows = self.codes("configuration").tolist()
        names = self.space.names
        return [self.space.from_numbers(dict(zip(names, row, strict=True))) for row in rows]

    @cached_property
    def trained(self) -> Bools:
        """(courses, rounds) whether a course was trained for a round."""
        rounds = np.array(self.rounds)
        if not self._ragged:
            return np.ones((len(self), len(rounds)), np.bool_)
        last = self.codes(LAST_ROUND)
        if not np.isin(last, rounds).all():
            raise DamagedDataError(
                f"{self._arrays.path}: {LAST_ROUND!r} must hold stored rounds; delete it and run "
                f"`{self._repair}`"
            )
        return np.asarray(rounds <= last[:, None])

    def values(self, which: str, split: str, metric: str) -> Singles:
        """Return one metric of all courses: (courses, rounds, clients) float32."""
        samples = self._course_samples(split)
        decoded = self.decoded(which, split, metric, samples[:, None])
        if not self._ragged:
            return decoded
        return np.where(self.trained[..., None], decoded, np.float32(np.nan))

    def _course_samples(self, split: str) -> Integers:
        """Return (courses, clients) samples of a split, as the seed of each course deals them."""
        return np.asarray(self.split_samples(split)[self.codes("seed")])

    def objective(self, split: str = "val", metric: str = "loss") -> Floats:
        """Return f of every course: (courses, rounds), weighted over clients; NaN as `values`."""
        samples = self._course_samples(split)
        weights = samples / samples.sum(axis=1, keepdims=True)
        values = self.values("best", split, metric)
        return np.asarray(np.einsum("crk,ck->cr", values, weights), dtype=np.float64)


def write_sample(folder: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write the arrays of a sample, then its card, and return the path of the card."""
    seeds = np.repeat(arrays["seed"], arrays["best_round"].shape[Sample.axis])
    return write_curves(folder, f"{card['name']}{SUFFIX}", card, arrays, Sample.axis, seeds)
