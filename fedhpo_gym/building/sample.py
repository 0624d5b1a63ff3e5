"""The design of a sample: as many courses of a space as somebody can afford, evenly spread.

`SampleDesign` numbers the courses of one endless sequence. `halton` gives the configurations;
`balanced` gives the rounds, and the client sample rates and seeds of a design that is not crossed.
All draws are from named streams, and a point is the same whatever the size: a larger sample extends
a smaller one. Points are cut into
units of courses that share minibatches, and the name of a unit's file lists its points.
`building/build.py` and `building/compute_queue.py` train the units, and `consolidate` writes the
sample.
"""

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import make_course
from fedhpo_gym.building import design
from fedhpo_gym.core.arrays import Floats, Integers
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.catalogue import find_stored
from fedhpo_gym.stored.table import CROSSED, ENDS, LAST_ROUND, SUFFIX, Sample, write_sample
from fedhpo_gym.tasks import Task

WINDOW = 96
"""Consecutive points among which units are formed."""
BLOCKS: Mapping[tuple[str, ...], int] = {("LR",): 24, ("LeafLR",): 24}
"""Points of a block, by the models of a task; 1 for others. Recorded designs rest on it."""
MAX_BLOCKS = 32
"""Blocks of a unit; its file is named by its points, and names are limited to 255 bytes."""
PREFIX = "points-"
MOST_POINTS = 10_000
"""Points that a name may stand for: far more than those of a unit."""
_WORD = re.compile(r"(0|[1-9][0-9]{0,14})(?:_([1-9][0-9]{0,14}))?")


@dataclass(frozen=True)
class SampleUnit:
    """Points of a sample that are computed, stored and resumed as one."""

    points: tuple[int, ...]  # their numbers in the sequence

    @property
    def name(self) -> str:
        """File stem of the results; a run of three or more points is written as `first_last`."""
        return PREFIX + "-".join(_join_runs(self.points))


class SampleDesign(design.Design[SampleUnit]):
    """The first points of one endless sequence of courses that fills a space evenly.

    A point is a configuration of a scrambled Halton sequence, a client sample rate and a seed.
    Points come in blocks (`BLOCKS`) of equal integers, rate and seed, because the engine shares
    work among equal batch sizes and architectures. A larger design extends a smaller one, point by
    point.

    By default, rate and seed of a block are drawn. In a `crossed` design, every configuration is
    trained at all `rates` under the first seed, so that configurations differ in nothing else, and
    one of `repeat_every` under the other seeds, too. Courses that a stored sample of the same plan
    holds are finished.
    """

    kind = "sample"

    @validate_call
    def __init__(
        self,
        task: Task,
        size: Annotated[int, Range(1)],
        rounds: int | Sequence[int] | None = None,
        rates: Sequence[float] | None = None,
        repeat_every: Annotated[int, Range(1)] | None = None,
        *,
        crossed: bool = False,
    ) -> None:
        self.repeat_every = repeat_every
        self.crossed = crossed
        full = task.fidelity_space
        round_, rate = full["round"], full["client_sample_rate"]
        self.depths = _sort_depths(round_, rounds)
        self.rates = _sort_rates(rate, rates)
        values = tuple(dict.fromkeys(self.rates))
        if crossed and (len(self.depths) > 1 or len(values) < len(self.rates)):
            raise InvalidArgumentError(
                "`rounds` must be one number and `rates` must differ in a crossed design, got "
                f"{self.depths} and {self.rates}; how often a value occurs matters in drawn ones"
            )
        fidelities = {
            "round": _limit_rounds(round_, self.depths),
            "client_sample_rate": replace(rate, low=values[0], high=values[-1], values=values),
        }
        dimensions = tuple(fidelities.get(d.name, d) for d in full.dimensions)
        self.task = task.variant(fidelity_space=SearchSpace(dimensions))
        self.horizon = task.max_round
        self._given_size = size
        self.size = self.courses_of(size)
        self._per_block = 1 if crossed else BLOCKS.get(task.models, 1)

    def courses_of(self, size: int) -> int:
        """Return how many courses a size is: of a crossed design, it counts configurations."""
        if not self.crossed:
            return size
        repeats = -(-size // self.repeat_every) if self.repeat_every else 0
        return (size + repeats * (len(self.task.seeds) - 1)) * len(self.rates)

    @property
    def space(self) -> SearchSpace:
        dimensions = self.task.space.dimensions
        return SearchSpace(tuple(d.discretized() if d.kind == "int" else d for d in dimensions))

    def _assign_blocks(self, points: Integers) -> tuple[Integers, Integers]:
        """Return which block of configurations some points have, and under which of its seeds."""
        blocks = points // self._per_block
        if self.repeat_every is None:
            return blocks, np.zeros_like(blocks)
        more = len(self.task.seeds) - 1
        run, offset = np.divmod(blocks, self.repeat_every + more)
        block = run * self.repeat_every + np.maximum(offset - more, 0)
        return block, np.where(offset <= more, offset, 0)

    @cached_property
    def _points(self) -> list[Course]:
        """The courses, in the order of the sequence."""
        space, seeds = self.space, self.task.seeds
        block, _, rate, seed = self._assign_courses(np.arange(self.size))
        shared = [d.kind == "int" for d in space.dimensions]
        points = halton(self.size, len(space))
        inside_block = points[block * self._per_block + np.arange(self.size) % self._per_block]
        actions = 2.0 * np.where(shared, points[block], inside_block) - 1.0
        return [
            make_course(
                self.task, space.decode(action), self.rates[rate[point]], seeds[seed[point]]
            )
            for point, action in enumerate(actions)
        ]

    def _assign_courses(self, points: Integers) -> tuple[Integers, ...]:
        """Return block, depth, client sample rate and seed of some points: (points,) positions."""
        sizes = (len(self.depths), len(self.rates), len(self.task.seeds))
        if self.crossed:
            block, rate, seed = self._assign_crossed(points)
            depths = balanced(int(block.max(initial=0)) + 1, sizes[0])
            return block, depths[block], rate, seed
        block, again = self._assign_blocks(points)
        combination = balanced(int(block.max(initial=0)) + 1, math.prod(sizes))[block]
        depth, rate, seed = np.unravel_index(combination, sizes)
        return block, depth, rate, (seed + again) % sizes[2]

    def _assign_crossed(self, points: Integers) -> tuple[Integers, Integers, Integers]:
        """Return configuration, client sample rate and seed of some points of a crossed design."""
        rates, seeds = len(self.rates), len(self.task.seeds)
        every = self.repeat_every
        if every is None:
            configuration, rate = np.divmod(points, rates)
            return configuration, rate, np.zeros_like(points)
        # A run of `every` configurations is preceded by the repetitions of its first one.
        run, offset = np.divmod(points, (every + seeds - 1) * rates)
        course, rate = np.divmod(offset, rates)
        configuration = run * every + np.maximum(course - (seeds - 1), 0)
        return configuration, rate, np.where(course < seeds, course, 0)

    def _trained_rounds(self, points: Sequence[int]) -> list[int]:
        """Return the rounds that the courses of some points are trained for."""
        return [self.depths[depth] for depth in self._assign_courses(np.array(points, np.int64))[1]]

    def evaluated_rounds(self, name: str) -> tuple[int, ...]:
        """Return the rounds after which courses of a unit are evaluated; all train equally long."""
        points = _points_of(name)
        last = self._trained_rounds(points[:1])[0] if points else 0
        return tuple(r for r in self.task.evaluated_rounds if r <= last)

    def units(self) -> list[SampleUnit]:
        return self._units(set())

    def courses(self, unit: SampleUnit) -> list[Course]:
        return [self._points[point] for point in unit.points]

    def positions(self, unit: SampleUnit) -> tuple[int, ...]:
        """Return the points of the unit: builds of two sizes cut them in two ways."""
        return unit.points

    def is_stored(self, unit: SampleUnit, parts: Path) -> bool:
        return self.done(parts).issuperset(unit.points)

    def missing(self, parts: Path) -> list[SampleUnit]:
        return self._units(self.done(parts))

    def done(self, parts: Path) -> set[int]:
        """Return the points whose courses are finished."""
        new = (rows.values() for rows in self.finished(parts).values())
        return {*itertools.chain.from_iterable(new), *self._stored_points}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the stored sample, whose card cannot be pickled; workers need its points."""
        return {name: value for name, value in self.__dict__.items() if name != "_stored"}

    @cached_property
    def _stored(self) -> Sample | None:
        """The stored sample that this design extends: one of the same plan."""
        card = find_stored(self.task.table_name, f"{SUFFIX}.json")
        if card is None:
            return None
        sample = Sample(card)
        return sample if self.extends(sample) else None

    def extends(self, sample: Sample) -> bool:
        """Return whether a stored sample is of the same plan."""
        plan: dict[str, Any] = json.loads(json.dumps(self.plan()))
        return {name: sample.card.get(name) for name in plan} == plan

    @cached_property
    def _stored_points(self) -> frozenset[int]:
        """Points of `_stored`; none where its arrays are not on this machine."""
        try:
            points = [] if self._stored is None else self._stored.codes("point").tolist()
        except MissingDataError:
            points = []
        return frozenset(points)

    @property
    def is_published(self) -> bool:
        """Whether the stored sample holds every course."""
        return self._stored_points.issuperset(range(self.size))

    def finished(self, parts: Path) -> dict[str, dict[int, int]]:
        """Return, per file stem, the rows that hold new points of the design, each point once."""
        done_points: set[int] = set(self._stored_points)
        rows_by_stem: dict[str, dict[int, int]] = {}
        for path in sorted(parts.glob(f"{PREFIX}*.npz")):
            points = _points_of(path.stem)
            rows_by_stem[path.stem] = {
                row: p for row, p in enumerate(points) if p < self.size and p not in done_points
            }
            done_points |= set(rows_by_stem[path.stem].values())
        return {stem: rows for stem, rows in rows_by_stem.items() if rows}

    def stored(self, parts: Path) -> dict[str, int]:
        """Return how many courses each file holds; none where no unit can have its name."""
        paths = sorted(parts.glob(f"{PREFIX}*.npz"))
        return {path.stem: len(_points_of(path.stem)) for path in paths}

    def points_in(self, name: str) -> int:
        """Return how many courses the file of a unit holds, by its name."""
        return len(_points_of(name))

    def _units(self, done: set[int]) -> list[SampleUnit]:
        """Cut the points that are not done into units of courses that share minibatches."""
        axes = design.shared_axes(self.task)
        groups: dict[tuple[Any, ...], list[int]] = {}
        depths = self._trained_rounds(range(self.size))
        for point, course in enumerate(self._points):
            if point not in done:
                shared = (course.seed, depths[point], *map(course.configuration.get, axes))
                groups.setdefault((point // WINDOW, *shared), []).append(point)
        units: list[SampleUnit] = []
        for group in groups.values():
            parameters = self.task.parameters_of(self._points[group[0]].configuration)
            size = max(min(design.UNIT_NUMBERS // parameters, MAX_BLOCKS * self._per_block), 1)
            units += [SampleUnit(tuple(group[i : i + size])) for i in range(0, len(group), size)]
        return sorted(units, key=lambda unit: unit.points)

    def consolidate(self, parts: Path, folder: Path) -> Path:
        finished = self.finished(parts)
        if not finished and not self._stored_points:
            raise MissingDataError(
                f"no course of the sample is finished in {parts}; run the build without "
                "`--only-finished`"
            )
        samples = design.client_samples(self.task)
        # Stored are those rounds of tables that were evaluated, and depths.
        storable = {*self.task.stored_fidelity_space()["round"].grid, *self.depths}
        evaluated = {r for name in finished for r in self.evaluated_rounds(name)}
        former = self._stored if self._stored_points else None
        evaluated |= set(() if former is None else former.rounds)
        rounds = np.array(sorted(storable & evaluated), dtype=np.int64)
        gathered: dict[str, list[NDArray[Any]]] = defaultdict(list)
        hardware = set() if former is None else {*former.card["hardware"].split("; ")}
        for key, array in [] if former is None else self._former_arrays(former, rounds):
            gathered[key].append(array)
        for name, rows in finished.items():
            unit = self.read(parts, name, len(_points_of(name)))
            hardware.add(str(unit["hardware"]))
            for key, array in self._arrays(unit, rows, rounds, samples):
                gathered[key].append(array)
        order = np.argsort(np.concatenate(gathered["point"]))
        arrays = {key: np.concatenate(parts)[order] for key, parts in gathered.items()}
        card = self._card(samples, arrays, rounds, hardware)
        return design.write_with_health(
            folder, lambda part_folder: write_sample(part_folder, card, arrays)
        )

    def _former_arrays(
        self, former: Sample, rounds: Integers
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield arrays of the stored sample; a curve repeats its last entry to the last round."""
        places = np.searchsorted(former.rounds, rounds, "right") - 1
        for name in former.names:
            codes = former.codes(name)
            yield name, codes[:, places] if codes.ndim > 1 and name != "configuration" else codes

    def _arrays(
        self, unit: dict[str, Any], rows: dict[int, int], rounds: Integers, samples: Integers
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield arrays of rows of a unit; a curve repeats its last entry to the last round."""
        unit_rows, points = list(rows), list(rows.values())
        courses = [self._points[point] for point in points]
        seed = self.task.seeds.index(courses[0].seed)  # a unit has one
        yield "point", np.array(points)
        values = [[c.configuration.get(n, np.nan) for n in self.space.names] for c in courses]
        yield "configuration", np.array(values, np.float64)
        yield "client_sample_rate", np.array([c.client_sample_rate for c in courses])
        yield "seed", np.full(len(courses), seed)
        yield "diverged_at", unit["diverged_at"][unit_rows].astype(np.uint16)
        evaluated = unit["rounds"]
        if self._is_ragged:
            yield LAST_ROUND, np.full(len(courses), evaluated[-1], np.uint16)
        unit_rounds = rounds[rounds <= evaluated[-1]]
        repeated = np.minimum(np.arange(len(rounds)), len(unit_rounds) - 1)
        for name, codes in design.encode_curves(
            unit["metrics"][unit_rows], evaluated, unit_rounds, samples[seed], self.axes
        ):
            *_, metric = name.split("_")
            wide = codec.dtype(metric, samples) if metric in self.task.metric_names else codes.dtype
            yield name, codes[:, repeated].astype(wide)

    @property
    def _is_ragged(self) -> bool:
        return len(self.depths) > 1

    def plan(self) -> dict[str, Any]:
        """Return the plan of any sample of this space, whatever its size."""
        return {
            **super().plan(),
            "client_sample_rates": list(self.rates),
            **({"rounds_trained": list(self.depths)} if self._is_ragged else {}),
            **({"repeat_every": self.repeat_every} if self.repeat_every else {}),
            **({CROSSED: True} if self.crossed else {}),
            "design": "scrambled Halton sequence, 1",
        }

    def _card(
        self,
        samples: Integers,
        arrays: dict[str, NDArray[Any]],
        rounds: Integers,
        hardware: set[str],
    ) -> dict[str, Any]:
        task, count = self.task, len(arrays["point"])
        round_, rate = (task.fidelity_space[n] for n in ("round", "client_sample_rate"))
        stored = tuple(rounds.tolist())
        grid = replace(round_, low=stored[0], high=stored[-1], values=stored, bins=None)
        options = [f"--sample {self._given_size} --rounds", ",".join(map(str, self.depths))]
        options += ["--rates", ",".join(map(str, self.rates))]
        if self.repeat_every is not None:
            options += ["--repeat-every", str(self.repeat_every)]
        options += ["--crossed"] if self.crossed else []
        ends = Counter(arrays[LAST_ROUND].tolist()) if self._is_ragged else {}
        return {
            **self.plan(),
            **task.identity.to_card(),
            "fidelity_space": SearchSpace((grid, rate)).to_dict(),
            "courses": count,
            "courses_planned": self.size,
            **({ENDS: {str(last): ends[last] for last in sorted(ends)}} if ends else {}),
            "axes": ["course", "round", "client"],
            "diverged_courses": int((arrays["diverged_at"] > 0).sum()),
            "missing": "all configurations that were not drawn; rounds that are not in the "
            f"fidelity grid; {self.size - count} of {self.size} planned courses",
            "build_command": f"fedhpo-gym build {task.identity.arguments} {' '.join(options)}",
            **design.provenance(task, samples, hardware),
        }


def _join_runs(points: Sequence[int]) -> Iterator[str]:
    """Yield ascending points as words, those of a run of three or more as one."""
    points = list(points)
    while points:
        length = 1
        while length < len(points) and points[length] == points[0] + length:
            length += 1
        yield f"{points[0]}_{points[length - 1]}" if length > 2 else str(points[0])
        points = points[length if length > 2 else 1 :]


def _points_of(stem: str) -> list[int]:
    """Return the points in the name of a unit's file; none if no unit can have this name."""
    points: list[int] = []
    for word in stem.removeprefix(PREFIX).split("-"):
        match = _WORD.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        ascending = (points[-1] if points else -1) < first <= last
        if not ascending or len(points) + last - first >= MOST_POINTS:
            return []
        points.extend(range(first, last + 1))
    return points


def _sort_depths(dimension: Dimension, rounds: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the rounds that courses are trained for, ascending, as often as they are drawn."""
    if rounds is None:
        return (int(dimension.high),)
    depths = (rounds,) if isinstance(rounds, int) else tuple(rounds)
    for depth in depths:
        if not dimension.low < depth <= dimension.high:
            raise InvalidArgumentError(
                f"`rounds` must be in [{dimension.low + 1}, {dimension.high}], the rounds of the "
                f"task, got {depth!r}"
            )
    if not depths:
        raise InvalidArgumentError(f"`rounds` must hold at least one number, got {rounds!r}")
    return tuple(sorted(depths))


def _sort_rates(dimension: Dimension, rates: Sequence[float] | None) -> tuple[float, ...]:
    """Return client sample rates, ascending, as often as they are drawn."""
    choices = dimension.grid if rates is None else rates
    values = tuple(sorted(float(dimension.validate(rate, "rates")) for rate in choices))
    if not values:
        raise InvalidArgumentError(f"`rates` must hold at least one rate, got {rates!r}")
    return values


def _limit_rounds(dimension: Dimension, depths: tuple[int, ...]) -> Dimension:
    last = depths[-1]
    if depths == (dimension.high,):
        return dimension
    grid = {r for r in map(int, dimension.grid) if r <= last}
    return replace(dimension, high=last, values=tuple(sorted({*grid, *depths})), bins=None)


_BITS = 50
"""Precision of a coordinate; a double holds it exactly enough for every grid."""


def halton(count: int, dimensions: int) -> Floats:
    """Return (count, dimensions) points in [0, 1) of a scrambled Halton sequence.

    Coordinate j of point i is i written in the j-th prime base, mirrored at the point (Halton,
    1960), with an independent random permutation of the values of every digit (Braaten and Weller,
    1979; here all digits, trailing zeros included). More points begin with the same ones.
    """
    # The n-th prime is at most n^2 + 1.
    primes = [n for n in range(2, dimensions**2 + 2) if all(n % k for k in range(2, n))]
    axes = enumerate(primes[:dimensions])
    return np.column_stack([_scrambled_radical_inverse(count, axis, p) for axis, p in axes])


def balanced(count: int, size: int) -> Integers:
    """Return (count,) numbers below `size`; every run of `size` from the front holds each once.

    The order inside a run is random: a fixed one could run in step with a coordinate of `halton`.
    """
    draws = (stream(0, "sample_order", size, run) for run in range(-(-count // size)))
    runs = (rng.permutation(size) for rng in draws)
    return np.concatenate([np.empty(0, np.int64), *runs])[:count]


def _scrambled_radical_inverse(count: int, axis: int, base: int) -> Floats:
    quotient = np.arange(count)
    coordinate = np.zeros(count)
    for digit in range(math.ceil(_BITS / math.log2(base))):
        permutation = stream(0, "sample_design", axis, digit).permutation(base)
        coordinate += permutation[quotient % base] * float(base) ** -(digit + 1)
        quotient //= base
    return np.minimum(coordinate, np.nextafter(1.0, 0.0))
