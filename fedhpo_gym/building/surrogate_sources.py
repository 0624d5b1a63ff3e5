"""What a surrogate can be fitted on: a table, or a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.surrogate_data import FittingRows
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.core.identity import IMPORTED, Identity
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import list_samples, list_tables, named, open_sample, open_table
from fedhpo_gym.stored.sample import Sample
from fedhpo_gym.stored.surrogate_inputs import CurveInputs, products_of
from fedhpo_gym.stored.surrogate_outputs import to_outputs, weights_of
from fedhpo_gym.stored.table import Table

MEASURES = ("val_accuracy", "log_val_loss")


def open_source(wanted: str | Identity) -> FittingSource:
    """Open what the surrogate of a variant is fitted on: its table, else its sample."""
    name, arguments = named(wanted)
    if name in list_tables():
        return FittingTable(open_table(wanted))
    if name in list_samples():
        return FittingSample(open_sample(wanted))
    raise MissingDataError(
        f"there is neither a table nor a sample {name!r} to fit a surrogate on; build a sample of "
        f"N courses with `fedhpo-gym build {arguments} --sample N`, or a table of the whole grid "
        "without `--sample`; the command first says what that costs"
    )


def intervals(space: SearchSpace) -> SearchSpace:
    """Return a grid's space with every value between its points legal."""
    continuous = (
        replace(d, values=None) if d.low < d.high and d.kind != "category" else d
        for d in space.dimensions
    )
    return SearchSpace(tuple(continuous))


def _inputs(stored: Table | Sample) -> CurveInputs:
    clients = stored.num_samples.shape[1]
    space, fidelities = intervals(stored.space), intervals(stored.fidelity_space)
    return CurveInputs(space, fidelities, clients, stored.seeds, products_of(space))


def _outputs(
    stored: Table | Sample, courses: NDArray[np.int64], axis: int, weights: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (n, K, outputs), and what clients have at the last round, as if all had all rounds."""
    clients, knots = stored.num_samples.shape[1], len(stored.rounds)

    def each(values: NDArray[Any], *last: int) -> NDArray[Any]:
        """Return (n, K, ...) of an array with an axis of rounds."""
        first = np.moveaxis(values, axis, 0).reshape(knots, -1, *last)
        return first[:, courses].swapaxes(0, 1)

    metrics = np.empty((len(courses), knots, clients, len(SPLITS), len(METRICS)), np.float32)
    for s, split in enumerate(SPLITS):
        for m, metric in enumerate(METRICS):
            metrics[..., s, m] = each(stored.values("best", split, metric), clients)
    best_round = each(stored.codes("best_round")).reshape(-1)
    repeated = np.repeat(weights, knots, axis=0)
    outputs = to_outputs(metrics.reshape(-1, *metrics.shape[2:]), best_round, repeated)
    at = stored.codes("diverged_at").reshape(-1)[courses][:, None]
    diverged = ((at > 0) & (at <= np.array(stored.rounds))).astype(np.float32)
    curves = outputs.reshape(len(courses), knots, -1)
    return np.concatenate([curves, diverged[..., None]], axis=2), metrics[:, -1].copy()


def _draw(total: int, limit: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if limit >= total:
        return np.arange(total)
    return np.sort(rng.choice(total, limit, replace=False))


class FittingTable:
    """The whole grid; all courses of a configuration are held out together."""

    kind: ClassVar[str] = "table"  # for cards

    def __init__(self, table: Table) -> None:
        self.stored = table
        self.inputs = _inputs(table)
        self.fidelity_space = self.inputs.fidelity_space
        self.num_configurations = self.num_held_out = table.space.grid_size

    def rows(self, limit: int, rng: np.random.Generator) -> FittingRows:
        """Return all courses, or as many as `limit` drawn without replacement."""
        table = self.stored
        grid = table.space.grid_shape
        shape = (*grid, len(table.rates), len(table.seeds))
        chosen = _draw(int(np.prod(shape)), limit, rng)
        at = np.unravel_index(chosen, shape)
        pairs = zip(self.inputs.space.dimensions, table.space.dimensions, strict=True)
        scales = [np.array([d.encode(value) for value in points.grid]) for d, points in pairs]
        coordinates = [scale[i] for scale, i in zip(scales, at[:-2], strict=True)]
        rates, seed = np.array(table.rates)[at[-2]], at[-1].astype(np.int64)
        seed_weights = weights_of(table.num_samples)
        outputs, final = _outputs(table, chosen, 0, seed_weights[seed])
        return FittingRows(
            inputs=self.inputs.rows_of_one_seed(np.column_stack(coordinates), rates, seed),
            outputs=outputs,
            final=final,
            trained=np.ones((len(chosen), len(table.rounds)), np.bool_),
            seed=seed,
            seed_weights=seed_weights,
            configuration=np.ravel_multi_index(at[:-2], grid).astype(np.int64),
            names=self.inputs.names,
            ranking=np.where(at[-2] == len(table.rates) - 1, seed, -1),
        )

    @cached_property
    def seed_spread(self) -> dict[str, float]:
        """Mean error of predicting a seed from the others at a point: the yardstick."""
        table = self.stored
        values = (
            table.objective("val", "accuracy"),
            np.log(table.objective("val", "loss") + 1e-12),
        )
        others = len(table.seeds) - 1
        spread: dict[str, float] = {}
        for measure, value in zip(MEASURES, values, strict=True):
            rest = value.sum(axis=-1, keepdims=True) - value
            distance = np.abs(value - rest / others).mean() if others else 0.0
            spread[measure] = float(f"{distance:.4g}")
        return spread


class FittingSample:
    """Courses spread over the space; those of one configuration or block are held out together.

    Courses of a block share minibatches: with some of them in training, every model would look
    good.
    """

    kind: ClassVar[str] = "sample"

    def __init__(self, sample: Sample) -> None:
        self.stored = sample
        self.inputs = _inputs(sample)
        self.fidelity_space = self.inputs.fidelity_space
        self._configurations = sample.configurations()
        same = _number([tuple(c.values()) for c in self._configurations])
        self.num_configurations = int(same.max()) + 1
        # Only courses of our designs come in blocks.
        together = same if IMPORTED in sample.card else _number(self._shared())
        self._together = _joined(same, together)
        self.num_held_out = len(np.unique(self._together))

    def _shared(self) -> list[tuple[Any, ...]]:
        """Return, per course, what its block has in common."""
        integers = [d.name for d in self.stored.space.dimensions if d.kind == "int"]
        rates, seeds = (self.stored.codes(name) for name in ("client_sample_rate", "seed"))
        pairs = zip(rates.tolist(), seeds.tolist(), strict=True)
        return [
            (*(configuration[name] for name in integers), *pair)
            for configuration, pair in zip(self._configurations, pairs, strict=True)
        ]

    def rows(self, limit: int, rng: np.random.Generator) -> FittingRows:
        """Return all courses, or as many as `limit` drawn without replacement."""
        sample = self.stored
        chosen = _draw(len(sample), limit, rng)
        seed = sample.codes("seed")[chosen].astype(np.int64)
        coordinates = np.stack([self.inputs.space.encode(c) for c in self._configurations])
        rates = sample.codes("client_sample_rate")[chosen]
        seed_weights = weights_of(sample.num_samples)
        trained = sample.trained[chosen]
        outputs, final = _outputs(sample, chosen, 1, seed_weights[seed])
        outputs[~trained] = np.nan
        return FittingRows(
            inputs=self.inputs.rows_of_one_seed(coordinates[chosen], rates, seed),
            outputs=outputs,
            final=final,
            trained=trained,
            seed=seed,
            seed_weights=seed_weights,
            configuration=self._together[chosen],
            names=self.inputs.names,
            ranking=np.zeros(len(chosen), dtype=np.int64),
        )

    @property
    def seed_spread(self) -> dict[str, float]:
        """Empty, as a sample has every configuration under one seed."""
        return {}


FittingSource = FittingTable | FittingSample
"""Learning curves that a surrogate can be fitted on."""


def _number(keys: list[tuple[Any, ...]]) -> NDArray[np.int64]:
    """Return the same number for equal keys, counted from 0."""
    known: Mapping[Any, int] = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([known[key] for key in keys], dtype=np.int64)


def _joined(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers that are equal where either of two numberings is, directly or by a chain."""
    joined = one
    while True:
        before = joined
        for numbers in (one, other):
            least = np.full(int(numbers.max()) + 1, len(one))
            np.minimum.at(least, numbers, joined)
            joined = least[numbers]
        if np.array_equal(joined, before):
            return joined
