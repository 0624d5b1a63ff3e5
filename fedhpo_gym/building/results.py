"""Results that somebody else computed become a table, or a sample where the grid has holes.

A reader yields courses one by one; of each, only codes at the stored rounds are kept. So reading
takes one course and the codes of all, and packing what `stored.curve_coder` takes.
"""

import datetime
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.design import encode_curves, versions, write_with_health
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import MAX_LOSS
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.catalogue import writable_table_folder
from fedhpo_gym.stored.table import ENDS, LACKS, LAST_ROUND, write_sample, write_table
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.federated import fidelity_grid

PSEUDO = 65_535
"""Samples of a client of whom nobody says it: accuracies are stored in steps of 1/65,535."""
UNMEASURED = np.array([MAX_LOSS, 0.0, 0.0])
"""What stands in the place of metrics that were not measured: the worst."""
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ImportedCourse:
    """What is known of one course."""

    configuration: tuple[Value, ...]  # in the order of `Results.names`
    client_sample_rate: float
    seed: int
    rounds: NDArray[np.int64]  # (evaluated,) ascending
    metrics: NDArray[np.float64]  # (evaluated, clients, splits, metrics); NaN where it diverged


@dataclass(frozen=True)
class Results:
    """Courses of one problem, and what is said of them."""

    task: Task  # what they belong to; its dimensions say the scale of hyperparameters
    names: tuple[str, ...]  # of the hyperparameters
    courses: Iterable[ImportedCourse]
    rounds: tuple[int, ...]  # that are kept, as far as courses go
    samples: Mapping[int, NDArray[np.int64]]  # (clients, splits) by seed
    fewest: int | None = None  # evaluations before which none stopped on purpose; None: none did
    # Filled while courses are read: what is not known, and entries of the card.
    lacks: dict[str, str] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)


def write_results(
    results: Results,
    folder: Path | None = None,
    beside: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Path:
    """Write the table of results, or their sample where courses are missing; return the card.

    Args:
        results: the courses.
        folder: of the numbers; by default that of the user's own tables.
        beside: see `building.design.write_with_health`.
    """
    target = writable_table_folder(folder)
    task, arrays, keys = results.task, *gather(results)
    rounds = np.array(results.rounds)
    evaluated, last = arrays.pop("evaluated"), arrays.pop(LAST_ROUND).astype(np.int64)
    stopped = last < last.max()
    if results.fewest is not None:
        cut = evaluated < results.fewest
        results.said["stopped_early"] = int((stopped & ~cut).sum())
        last[~cut] = last.max()
        stopped &= cut
    is_reached = rounds <= last.max()
    arrays = {n: a if n == "diverged_at" else a[:, is_reached] for n, a in arrays.items()}
    seeds = tuple(sorted(results.samples))
    *values, rates, _ = ([*dict.fromkeys(column)] for column in zip(*keys, strict=True))
    dimensions = {d.name: d for d in task.space.dimensions}
    columns = dict(zip(results.names, values, strict=True))
    space = SearchSpace(
        tuple(_restrict_to_values(d, columns[name]) for name, d in dimensions.items())
    )
    fidelities = fidelity_grid(rounds[is_reached].tolist(), sorted(rates))
    order = [results.names.index(name) for name in space.names]
    ordered = [(*(key[i] for i in order), *key[-2:]) for key in keys]
    axes = [d.grid for d in (*space.dimensions, fidelities["client_sample_rate"])]
    shape = (*map(len, axes), len(seeds))
    indices = [{value: i for i, value in enumerate(axis)} for axis in (*axes, seeds)]
    missing = math.prod(shape) - len(keys)
    card: dict[str, Any] = {
        **task.identity.to_card(),
        "space": space.to_dict(),
        "fidelity_space": fidelities.to_dict(),
        "seeds": list(seeds),
        "num_samples": [results.samples[seed].tolist() for seed in seeds],
        "splits": list(task.splits),
        "metrics": list(task.metric_names),
        "codes": codec.DESCRIPTION,
        "diverged_courses": int((arrays["diverged_at"] > 0).sum()),
        "missing": f"rounds that are not in the fidelity grid; {missing} of {math.prod(shape)} "
        f"courses of the grid; {int(stopped.sum())} courses end early",
        "build_command": task.identity.command,
        "problem_citation": task.citation,
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "software": versions("numpy"),
        LACKS: dict(results.lacks),
        **results.said,
    }
    if not missing and not stopped.any():
        card["axes"] = ["round", *space.names, "client_sample_rate", "seed", "client"]
        at = [[index[v] for index, v in zip(indices, key, strict=True)] for key in ordered]
        order_of = np.argsort(np.ravel_multi_index(np.array(at).T, shape))
        cells = _as_grid(arrays, order_of, shape)
        written = write_with_health(
            target, lambda part_folder: write_table(part_folder, card, cells), beside
        )
        return _remove_former(written, "sample")
    card |= {"axes": ["course", "round", "client"], "courses": len(keys)}
    if stopped.any():
        before = np.maximum(np.searchsorted(rounds[is_reached], last, "right") - 1, 0)
        arrays[LAST_ROUND] = rounds[is_reached][before].astype(np.uint16)
        card[ENDS] = {str(k): v for k, v in sorted(Counter(arrays[LAST_ROUND].tolist()).items())}
    numbers = [
        [d.number(v) for d, v in zip(space.dimensions, key, strict=False)] for key in ordered
    ]
    arrays |= {
        "configuration": np.array(numbers, np.float64),
        "client_sample_rate": np.array([key[-2] for key in ordered]),
        "seed": np.array([seeds.index(key[-1]) for key in ordered]),
        "point": np.arange(len(keys)),
    }
    written = write_with_health(
        target, lambda part_folder: write_sample(part_folder, card, arrays), beside
    )
    return _remove_former(written, "table")


def _remove_former(card: Path, kind: str) -> Path:
    """Remove the table or sample that results of this name had before, the card first."""
    stem = card.name.partition(".")[0]
    for old in sorted(card.parent.glob(f"{stem}.{kind}.*"), reverse=True):
        old.unlink()
    return card


def gather(results: Results) -> tuple[Arrays, list[tuple[Any, ...]]]:
    """Return arrays with an axis of courses before all others, and the keys of the courses."""
    task, held = results.task, defaultdict[str, bytearray](bytearray)
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    keys: dict[tuple[Any, ...], None] = {}
    stored = np.array(results.rounds)
    every = np.stack([*results.samples.values()])
    for course in results.courses:
        key = (*course.configuration, course.client_sample_rate, course.seed)
        if key in keys:
            raise InvalidArgumentError(f"`results` must hold each course once, got two of {key}")
        keys[key] = None
        metrics, diverged_at = fill_diverged(course)
        arrays: Arrays = {
            "evaluated": np.array(len(course.rounds)),
            LAST_ROUND: course.rounds[-1],
            "diverged_at": np.array(diverged_at, np.uint16),
        }
        codes = encode_curves(
            metrics[None],
            course.rounds,
            np.maximum(stored, course.rounds[0]),
            results.samples[course.seed],
            (task.splits, task.metric_names),
        )
        for name, curves in codes:
            *_, metric = name.split("_")
            wide = codec.dtype(metric, every) if metric in task.metric_names else curves.dtype
            arrays[name] = curves[0].astype(wide)
        for name, array in arrays.items():
            held[name] += np.ascontiguousarray(array).tobytes()
            kinds[name] = array.dtype, array.shape
    if not keys:
        raise InvalidArgumentError("`results` must hold at least one course, got none")
    shaped = {n: np.frombuffer(held[n], kind).reshape(-1, *s) for n, (kind, s) in kinds.items()}
    return shaped, [*keys]


def fill_diverged(course: ImportedCourse) -> tuple[NDArray[np.float64], int]:
    """Return finite metrics, and the round from which no validation loss is finite; 0 for none.

    From there on the last finite ones are repeated, as the engine keeps the last finite model.
    """
    metrics = course.metrics
    is_known = np.asarray(np.isfinite(metrics[:, :, 1, 0]).all(axis=1))
    end = len(is_known) - int(np.argmax(is_known[::-1])) if is_known.any() else 0
    worst = np.array([np.finfo(np.float32).max, 0.0, 0.0])
    filled = np.where(np.isfinite(metrics), metrics, worst)
    filled = np.clip(filled, 0.0, worst[0])
    if end == len(is_known):
        return filled, 0
    filled[end:] = filled[end - 1] if end else worst
    return filled, int(course.rounds[end])


def _restrict_to_values(dimension: Dimension, values: Sequence[Any]) -> Dimension:
    """Return a dimension of which only some values are legal."""
    if dimension.kind == "category":
        return Dimension.of_categories(dimension.name, sorted(values), scope=dimension.scope)
    points = tuple(sorted(values))
    log = dimension.log and points[0] > 0
    return replace(dimension, low=points[0], high=points[-1], values=points, bins=None, log=log)


def _as_grid(arrays: Arrays, order: NDArray[np.int64], shape: tuple[int, ...]) -> Arrays:
    """Return arrays whose courses are cells of a grid, and whose rounds come first."""
    grids = {}
    for name in [*arrays]:
        array = arrays.pop(name)[order]
        grid = array.reshape(*shape, *array.shape[1:])
        grids[name] = grid if name == "diverged_at" else np.moveaxis(grid, len(shape), 0)
    return grids
