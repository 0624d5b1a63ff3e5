"""What a surrogate can be fitted on, and the few numbers that stand for curves of courses.

`open_source` opens the table or the sample of a variant as a `FittingSource`, whose `rows` are
`FittingRows`: inputs, and curves of metrics at the stored rounds. `prepare` turns these into
`PreparedRows` for the regressors of `building/candidates.py`: standardised, with rounds that were
not trained filled in (`completed`), and compressed to principal components. What scales and
compresses the curves is learned from the rows of the fit alone, so that held-out rows stay unseen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import require_trainable
from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.core.identity import IMPORTED, Identity
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import list_samples, list_tables, named, open_sample, open_table
from fedhpo_gym.stored.surrogate_models import matern
from fedhpo_gym.stored.surrogate_rows import (
    COMPRESSED_CLIENTS,
    SPREAD_OUTPUTS,
    CurveInputs,
    client_shares,
    products_of,
    to_outputs,
)
from fedhpo_gym.stored.table import Sample, Table
from fedhpo_gym.tasks import task_of

LOSS_WEIGHT = 4.0
"""How much more than another output a log loss of the federation counts: it is the objective."""
CLIENTS_AT_FULL_WEIGHT = 5
"""With more clients, the outputs of all clients together count as much as those of five, and so do
those of their spread."""
LOW_PERCENTILE = 5
"""A loss may be as far below the lowest of the data as that is below this percentile. Better
courses than those drawn exist; were none predicted, all that beat these would tie."""
MAX_COMPONENTS = 16
COMPONENT_BYTES = 180_000
COMPONENT_ROWS = 1_500
MAX_DIRECTIONS = 48
"""In which curves may differ: so many numbers stand for a curve."""

PER_CLIENT = 3 * len(SPLITS)
"""Outputs of a client."""


def client_outputs(num_clients: int) -> slice:
    """Return where a row holds the outputs of clients; spread, best round, divergence follow."""
    return slice(len(SPLITS), len(SPLITS) + PER_CLIENT * num_clients)


@dataclass(frozen=True)
class FittingRows:
    """Courses of one seed each, at K stored rounds."""

    inputs: Singles  # (n, 1, columns)
    outputs: Singles  # (n, K, outputs), the last whether diverged; NaN where not trained
    final: Singles  # (n, clients, splits, metrics) at the last round
    trained: Bools  # (n, K) which rounds courses were trained for
    seed: Integers  # (n,) which seed
    seed_weights: Floats  # (seeds, clients, splits) of the clients in the mean
    configuration: Integers  # (n,) which configurations are held out together
    ranking: Integers  # (n,) which are ranked together at equal rounds; -1 for none
    names: tuple[str, ...]  # of the columns

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Integers) -> "FittingRows":
        arrays = {k: v[index] for k, v in vars(self).items() if k not in ("seed_weights", "names")}
        return replace(self, **arrays)

    @property
    def weights(self) -> Floats:
        """(n, clients, splits) weights of the clients in the mean."""
        return np.asarray(self.seed_weights[self.seed])

    @property
    def shared_knot(self) -> int:
        """The last of the K rounds that all courses were trained for."""
        return int(self.trained.sum(axis=1).min()) - 1

    @property
    def num_clients(self) -> int:
        """Clients of the federation."""
        return int(self.seed_weights.shape[1])


@dataclass(frozen=True)
class PreparedRows:
    """FittingRows as a regressor sees them."""

    inputs: Singles  # (n, columns)
    curves: Singles  # (n, K * targets) standardised outputs; what was not trained is filled in
    known: Bools  # (n, K * targets) what is not filled in
    coefficients: Singles  # (n, coefficients) what stands for them
    seeds: int  # how many seeds there are
    scales: dict[str, Singles]  # as in `stored.surrogate_curves.CurveModel`
    centre: Singles  # likewise
    basis: Singles  # likewise
    clients: Singles | None  # likewise
    names: tuple[str, ...]  # of the columns of `inputs`; seeds come last


def prepare(rows: FittingRows) -> PreparedRows:
    """Return rows for a fit; what scales and compresses them is learned from them alone."""
    n, knots, outputs = rows.outputs.shape
    flat, trained = rows.outputs.reshape(-1, outputs), rows.trained.ravel()
    scales = scales_of(flat[trained], rows.num_clients)
    clients, where = None, client_outputs(rows.num_clients)
    if rows.num_clients > COMPRESSED_CLIENTS:
        # They are stored in half precision: what is fitted must agree with it.
        scales = {name: halved(value) for name, value in scales.items()}
    targets = (flat - scales["mean"]) / scales["scale"]
    if rows.num_clients > COMPRESSED_CLIENTS:
        count = max(1, min(MAX_COMPONENTS, COMPONENT_BYTES // (2 * 9 * rows.num_clients)))
        clients = principal_directions(targets[trained, where], count)
        middle = targets[:, where] @ clients.T
        parts = targets[:, : where.start], middle, targets[:, where.stop :]
        targets = np.concatenate(parts, axis=1)
    settings = rows.inputs[:, 0, : -len(rows.seed_weights)]
    holes = targets.reshape(n, knots, -1).astype(np.float32)
    curves = completed(holes, rows.trained, settings).reshape(n, -1)
    centre = curves.mean(axis=0, dtype=np.float64).astype(np.float32)
    basis = principal_directions(curves - centre, MAX_DIRECTIONS)
    return PreparedRows(
        rows.inputs[:, 0],
        curves - centre,
        np.repeat(rows.trained, targets.shape[1], axis=1),
        ((curves - centre) @ basis.T).astype(np.float32),
        len(rows.seed_weights),
        scales,
        centre.reshape(knots, -1),
        basis.reshape(len(basis), knots, -1),
        clients,
        rows.names,
    )


def halved(values: Singles) -> Singles:
    """Return values as half precision gives them back."""
    return values.astype(np.float16).astype(np.float32)


def scales_of(outputs: Singles, num_clients: int) -> dict[str, Singles]:
    """Return mean, scale and range of (n, outputs)."""
    scale = outputs.std(axis=0, dtype=np.float64) + 1e-6
    scale[: len(SPLITS)] /= LOSS_WEIGHT
    where = client_outputs(num_clients)
    scale[where] *= math.sqrt(max(num_clients / CLIENTS_AT_FULL_WEIGHT, 1.0))
    scale[where.stop : -2] *= math.sqrt(SPREAD_OUTPUTS / (PER_CLIENT * CLIENTS_AT_FULL_WEIGHT))
    low, losses = outputs.min(axis=0), slice(len(SPLITS))
    few = np.percentile(outputs[:, losses], LOW_PERCENTILE, axis=0).astype(np.float32)
    low[losses] -= few - low[losses]
    return {
        "mean": outputs.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scale": scale.astype(np.float32),
        "low": low,
        "high": outputs.max(axis=0),
    }


def principal_directions(rows: Singles, most: int) -> Singles:
    """Return (directions, columns) in which (n, columns) rows differ most, in half precision."""
    indices = np.linspace(0, len(rows) - 1, min(len(rows), COMPONENT_ROWS)).astype(np.int64)
    subset = rows[indices].astype(np.float64)
    count = max(1, min(most, *subset.shape))
    if subset.shape[0] < subset.shape[1]:
        directions = np.linalg.eigh(subset @ subset.T)[1][:, ::-1][:, :count].T @ subset
    else:
        directions = np.linalg.eigh(subset.T @ subset)[1][:, ::-1][:, :count].T
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    return halved((directions / np.maximum(norms, 1e-9)).astype(np.float32))


DIRECTIONS = 8
"""Principal components that stand for the beginning of a curve."""
LENGTHS = (1.0, 2.0, 4.0, 8.0)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e4)
"""Scales of the kernel, and penalties; with the largest, the line alone says how courses go on."""
WIDER = 2.0
"""By how many widths of their range the values of those that go on may be exceeded."""
SETTINGS = 0.5
"""What a setting counts, where the direction in which beginnings differ most has deviation 1."""


def completed(curves: Singles, trained: Bools, settings: Singles) -> Singles:
    """Return curves with the rounds that courses lack filled in.

    From each round at which courses end to the next, a line says what follows from the last value,
    and courses of similar settings and beginnings say the rest. It stays near the range of those
    that go on. After the last round that any course has, the last value is repeated.

    Shapes: `curves` (n, K, targets); `trained` (n, K); `settings` (n, columns).
    """
    if trained.all():
        return curves
    ends = np.unique(trained.sum(axis=1)).tolist()
    completion = curves.astype(np.float64)
    for start, end in pairwise(ends):
        longer = trained[:, end - 1]
        beginnings = _score_beginnings(completion[:, :start].reshape(len(completion), -1), longer)
        near = np.concatenate([beginnings, SETTINGS * settings], axis=1)
        line = _fit_slopes(completion[longer, start - 1], completion[longer, start:end])
        expected = line * completion[:, start - 1 : start]
        residuals = completion[longer, start:end] - expected[longer]
        prediction = _predict_residuals(
            near[longer], residuals.reshape(len(residuals), -1), near[~longer]
        )
        prediction = expected[~longer] + prediction.reshape(-1, *residuals.shape[1:])
        low, high = (
            completion[longer, start:end].min(axis=0),
            completion[longer, start:end].max(axis=0),
        )
        room = WIDER * (high - low)
        completion[~longer, start:end] = np.clip(prediction, low - room, high + room)
    completion[:, ends[-1] :] = completion[:, ends[-1] - 1 : ends[-1]]
    return completion.astype(np.float32)


def _score_beginnings(heads: Floats, longer: Bools) -> Floats:
    """Return (n, directions) scores of (n, columns) along what differs most in longer courses."""
    longer_heads = heads[longer]
    centre = longer_heads.mean(axis=0)
    directions = np.linalg.svd(longer_heads - centre, full_matrices=False)[2][:DIRECTIONS]
    scores = (heads - centre) @ directions.T
    return np.asarray(scores / max(float(scores[longer, :1].std()), 1e-12))


def _fit_slopes(last: Floats, later: Floats) -> Floats:
    """Return the (rounds, targets) slopes of (m, rounds, targets) later values on (m, targets)."""
    centred = last - last.mean(axis=0)
    product_sum = np.einsum("mt,mrt->rt", centred, later)
    return np.asarray(product_sum / np.maximum((centred**2).sum(axis=0), 1e-9))


def _predict_residuals(inputs: Floats, values: Floats, queries: Floats) -> Floats:
    """Predict the (s, targets) values at `asked` from courses that resemble it.

    Kernel ridge regression about the mean. A Matern kernel of smoothness 3/2 forgets with the
    distance, so a course that resembles no other gets the mean: with lines alone, the best courses
    would become better than any was. Scale and penalty have the least error when each course is
    left out in turn.

    Shapes: `known` (m, columns); `values` (m, targets); `asked` (s, columns).
    """
    mean = values.mean(axis=0)
    residuals = values - mean
    length, ridge = min(
        product(LENGTHS, RIDGES),
        key=lambda pair: _left_out_error(
            matern(inputs / pair[0], inputs / pair[0]), residuals, pair[1]
        ),
    )
    gram = matern(inputs / length, inputs / length) + ridge * np.eye(len(inputs))
    return np.asarray(
        mean + matern(queries / length, inputs / length) @ np.linalg.solve(gram, residuals)
    )


def _left_out_error(gram: Floats, values: Floats, ridge: float) -> float:
    """Return the squared error, over all courses, of predicting each from the others."""
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    missed = (inverse @ values) / np.diag(inverse)[:, None]
    return float((missed**2).sum())


MEASURES = ("val_accuracy", "log_val_loss")


def open_source(variant: str | Identity) -> "FittingSource":
    """Open what the surrogate of a variant is fitted on: its table, else its sample."""
    name, arguments = named(variant)
    if name in list_tables():
        return FittingTable(open_table(variant))
    if name in list_samples():
        return FittingSample(open_sample(variant))
    if isinstance(variant, Identity):
        require_trainable(task_of(variant))
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


def _make_inputs(stored: Table | Sample) -> CurveInputs:
    clients = stored.num_samples.shape[1]
    space, fidelities = intervals(stored.space), intervals(stored.fidelity_space)
    return CurveInputs(space, fidelities, clients, stored.seeds, products_of(space))


def _make_outputs(
    stored: Table | Sample, courses: Integers, axis: int, weights: Floats
) -> tuple[Singles, Singles]:
    """Return (n, K, outputs), and what clients have at the last round, as if all had all rounds."""
    clients, knots = stored.num_samples.shape[1], len(stored.rounds)

    def each(values: NDArray[Any], *last: int) -> NDArray[Any]:
        """Return (n, K, ...) of an array with an axis of rounds."""
        return np.moveaxis(values, axis, 0).reshape(knots, -1, *last)[:, courses].swapaxes(0, 1)

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


def _draw_courses(total: int, limit: int, rng: np.random.Generator) -> Integers:
    if limit >= total:
        return np.arange(total)
    return np.sort(rng.choice(total, limit, replace=False))


class FittingTable:
    """The whole grid; all courses of a configuration are held out together."""

    kind: ClassVar[str] = "table"  # for cards

    def __init__(self, table: Table) -> None:
        self.stored = table
        self.inputs = _make_inputs(table)
        self.fidelity_space = self.inputs.fidelity_space
        self.num_configurations = self.num_held_out = table.space.grid_size

    def rows(self, limit: int, rng: np.random.Generator) -> FittingRows:
        """Return all courses, or as many as `limit` drawn without replacement."""
        table = self.stored
        grid = table.space.grid_shape
        shape = (*grid, len(table.rates), len(table.seeds))
        courses = _draw_courses(int(np.prod(shape)), limit, rng)
        at = np.unravel_index(courses, shape)
        pairs = zip(self.inputs.space.dimensions, table.space.dimensions, strict=True)
        scales = [np.array([d.encode(value) for value in points.grid]) for d, points in pairs]
        coordinates = [scale[i] for scale, i in zip(scales, at[:-2], strict=True)]
        rates, seed = np.array(table.rates)[at[-2]], at[-1].astype(np.int64)
        seed_weights = client_shares(table.num_samples)
        outputs, final = _make_outputs(table, courses, 0, seed_weights[seed])
        return FittingRows(
            inputs=self.inputs.rows_of_one_seed(np.column_stack(coordinates), rates, seed),
            outputs=outputs,
            final=final,
            trained=np.ones((len(courses), len(table.rounds)), np.bool_),
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
            sum_of_others = value.sum(axis=-1, keepdims=True) - value
            distance = np.abs(value - sum_of_others / others).mean() if others else 0.0
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
        self.inputs = _make_inputs(sample)
        self.fidelity_space = self.inputs.fidelity_space
        self._configurations = sample.configurations()
        same = _number_keys([tuple(c.values()) for c in self._configurations])
        self.num_configurations = int(same.max()) + 1
        # Only courses of our designs come in blocks.
        together = same if IMPORTED in sample.card else _number_keys(self._shared())
        self._together = _join_numberings(same, together)
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
        courses = _draw_courses(len(sample), limit, rng)
        seed = sample.codes("seed")[courses].astype(np.int64)
        coordinates = np.stack([self.inputs.space.encode(c) for c in self._configurations])
        rates = sample.codes("client_sample_rate")[courses]
        seed_weights = client_shares(sample.num_samples)
        trained = sample.trained[courses]
        outputs, final = _make_outputs(sample, courses, 1, seed_weights[seed])
        outputs[~trained] = np.nan
        return FittingRows(
            inputs=self.inputs.rows_of_one_seed(coordinates[courses], rates, seed),
            outputs=outputs,
            final=final,
            trained=trained,
            seed=seed,
            seed_weights=seed_weights,
            configuration=self._together[courses],
            names=self.inputs.names,
            ranking=np.zeros(len(courses), dtype=np.int64),
        )

    @property
    def seed_spread(self) -> dict[str, float]:
        """Empty, as a sample has every configuration under one seed."""
        return {}


FittingSource = FittingTable | FittingSample
"""Learning curves that a surrogate can be fitted on."""


def _number_keys(keys: list[tuple[Any, ...]]) -> Integers:
    """Return the same number for equal keys, counted from 0."""
    index_of: Mapping[Any, int] = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([index_of[key] for key in keys], dtype=np.int64)


def _join_numberings(first: Integers, second: Integers) -> Integers:
    """Return numbers that are equal where either of two numberings is, directly or by a chain."""
    joined = first
    while True:
        before = joined
        for numbers in (first, second):
            least = np.full(int(numbers.max()) + 1, len(first))
            np.minimum.at(least, numbers, joined)
            joined = least[numbers]
        if np.array_equal(joined, before):
            return joined
