"""What a surrogate's model sees, what it predicts, and the metrics of every client of that.

It sees coordinates, how many clients take part, and the seed. A row of outputs holds, in this
order, for N clients:

- the natural logarithm of the loss of the federation, per split (3);
- the accuracy of every client, per split (3 N), then its macro-F1 (3 N);
- the share of every client in the loss of the federation, per split (3 N);
- with more than 50 clients, the mean of clients' accuracies weighted by samples, their standard
  deviation and their quantiles at `LEVELS`, per split, then those of macro-F1;
- the natural logarithm of the best round (1).

The loss of the federation is the sample-weighted mean over clients, the number optimisers minimise.
It is modelled by itself because a mean of clients' losses, each predicted in log space, falls short
where a client's loss jumps between nothing and millions.

The outputs of many clients are compressed, which makes clients more alike than they are. What is
predicted of them then says in which order they come; their quantiles say how far they lie apart.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats, Integers, Reals, Singles
from fedhpo_gym.evaluation.records import ENTRIES, METRICS, SPLITS, Entries, sum_in_order
from fedhpo_gym.space import Dimension, SearchSpace

SAMPLE_RATE = "client_sample_rate"
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CurveInputs:
    """The encoding of a surrogate's rows; clients that take part are on a logarithmic scale."""

    space: SearchSpace  # configurations, as intervals
    fidelity_space: SearchSpace
    num_clients: int
    seeds: tuple[int, ...]
    products: "tuple[Product, ...]" = ()  # products of hyperparameters that it sees

    @classmethod
    def from_names(
        cls,
        names: Sequence[str],
        space: SearchSpace,
        fidelity_space: SearchSpace,
        num_clients: int,
        seeds: tuple[int, ...],
    ) -> Self:
        """Return the encoding whose columns a card names."""
        encoding = cls(space, fidelity_space, num_clients, seeds, named_products(names, space))
        if tuple(names) != encoding.names or len(set(names)) < len(names):
            raise ValueError(
                f"`inputs` must be {[*encoding.names][:20]}, each once and in this order"
            )
        return encoding

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        products = (product.name for product in self.products)
        seeds = (f"seed={seed}" for seed in self.seeds)
        return (*self.space.names, "log_clients", *products, *seeds)

    def rows(self, columns: Columns, seed_rows: Integers) -> Singles:
        """Return the (B, S, columns) rows of B evaluations, one for each of `seed_rows` (S,)."""
        shared_features = self._known(self.space.encode_columns(columns), columns[SAMPLE_RATE])
        width = shared_features.shape[1]
        rows = np.zeros(
            (len(shared_features), len(seed_rows), width + len(self.seeds)), dtype=np.float32
        )
        rows[..., :width] = shared_features[:, None]
        rows[:, np.arange(len(seed_rows)), width + seed_rows] = 1.0
        return rows

    def rows_of_one_seed(
        self, coordinates: NDArray[np.floating], rates: NDArray[np.floating], seed: Integers
    ) -> Singles:
        """Return (n, 1, columns) rows of (n, d) coordinates, (n,) rates and the (n,) `seed`."""
        eye = np.eye(len(self.seeds), dtype=np.float32)[seed]
        shared_features = self._known(coordinates.astype(np.float32), rates)
        return np.column_stack([shared_features.astype(np.float32), eye])[:, None]

    def _known(self, coordinates: Singles, rates: NDArray[np.floating]) -> Floats:
        exact = coordinates.astype(np.float64)
        products = (product.column(self.space, exact) for product in self.products)
        return np.column_stack([exact, self._log_clients(rates), *products])

    def _log_clients(self, rates: NDArray[np.floating]) -> Floats:
        ends = self.fidelity_space[SAMPLE_RATE]
        few, many = _sampled(np.array([ends.low, ends.high]), self.num_clients).tolist()
        if few == many:
            return np.zeros(len(rates))
        sampled = _sampled(rates, self.num_clients).tolist()
        logs = np.array([math.log(count / few) for count in sampled])
        return np.asarray(2.0 * logs / math.log(many / few) - 1.0)


def _sampled(rates: NDArray[np.floating], clients: int) -> Floats:
    """Return how many clients take part, by the rule of `Fidelity.sampled_clients`."""
    return np.maximum(np.floor(np.asarray(rates, dtype=np.float64) * clients + 1e-9), 1.0)


RATE, EPOCHS, BATCH = "learning_rate", "step_size", "batch_size"
WORK = ((RATE, EPOCHS), (BATCH,)), ((EPOCHS,), (BATCH,)), ((EPOCHS,), ())
"""Factors and divisors of the products that new surrogates see."""
_NAME = re.compile(r"log\((\w+(?:\*\w+)*)((?:/\w+)*)\)")


@dataclass(frozen=True)
class Product:
    """The logarithm of a product of hyperparameters, scaled to [-1, 1] over a search space."""

    factors: tuple[str, ...]  # names of what is multiplied
    divisors: tuple[str, ...]  # names of what it is divided by

    @property
    def name(self) -> str:
        """What cards call the column: "log(a*b/c)"."""
        return f"log({'*'.join(self.factors)}{''.join(f'/{name}' for name in self.divisors)})"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """All hyperparameters in it."""
        return (*self.factors, *self.divisors)

    def column(self, space: SearchSpace, coordinates: Floats) -> Floats:
        """Return the (n,) values at (n, d) coordinates in [-1, 1]."""
        total, low, high = np.zeros(len(coordinates)), 0.0, 0.0
        for sign, names in ((1.0, self.factors), (-1.0, self.divisors)):
            for name in names:
                total += sign * _log(space[name], coordinates[:, space.names.index(name)])
                ends = sorted(sign * math.log(end) for end in (space[name].low, space[name].high))
                low, high = low + ends[0], high + ends[1]
        return np.asarray(2.0 * (total - low) / (high - low) - 1.0)


def is_product(name: str) -> bool:
    """Return whether this is the name of such a column."""
    return _NAME.fullmatch(name) is not None


def products_of(space: SearchSpace) -> tuple[Product, ...]:
    """Return the products that a surrogate of this space sees: of what varies and is positive."""
    open_ = {d.name for d in space.dimensions if d.values is None and 0 < d.low < d.high}
    candidates = (
        Product(*(tuple(name for name in names if name in open_) for names in both))
        for both in WORK
    )
    some = (product for product in candidates if product.factors and EPOCHS in open_)
    return tuple(dict.fromkeys(some))


def named_products(names: Iterable[str], space: SearchSpace) -> tuple[Product, ...]:
    """Return the products among the names of columns."""
    matches = (_NAME.fullmatch(name) for name in names)
    products = tuple(
        Product(tuple(m[1].split("*")), tuple(m[2].split("/")[1:])) for m in matches if m
    )
    for product in products:
        if len(set(product.dimensions)) < len(product.dimensions):
            raise ValueError(f"{product.name[:80]} must name every hyperparameter once")
        for name in product.dimensions:
            dimension = space[name]
            if dimension.values is not None or not 0 < dimension.low < dimension.high:
                raise ValueError(f"{product.name} is no number everywhere between {dimension}")
    return products


def _log(dimension: Dimension, coordinates: Floats) -> Floats:
    """Return natural logarithms of the values at (n,) coordinates."""
    if dimension.log and dimension.kind == "float":
        start, stop = math.log(dimension.low), math.log(dimension.high)
        return np.asarray(start + (coordinates + 1.0) / 2.0 * (stop - start))
    # One by one: numpy's logarithm is not the same on every processor. Integers are few.
    distinct, where = np.unique(coordinates, return_inverse=True)
    values = dimension.decode_many(distinct)
    return np.array([*map(math.log, values.tolist())])[where]


SMALLEST_LOSS = 1e-6
"""Losses below are taken for this one; its logarithm is finite."""
LARGEST_LOSS = 10.0
"""Losses above are taken for this one: scores are cut off there, though other rewards are not. Few
courses reach e^75, and would else decide both the fit and its mean error."""

COMPRESSED_CLIENTS = 50
"""With more clients, the outputs of clients are compressed to a few principal components."""
LEVELS = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 1.0])
"""Of the quantiles over clients, with linear interpolation between clients."""

RATES = ("accuracy", "f1")
MOVES = 8
"""How often clients are moved until their spread and weighted mean are the predicted ones."""
MOST_WIDENED = 4.0
SPREAD_OUTPUTS = len(RATES) * len(SPLITS) * (2 + len(LEVELS))
"""How many outputs hold, by metric and split, weighted mean, spread and quantiles of clients."""
_LOSS, _ACCURACY, _F1 = (METRICS.index(name) for name in ("loss", *RATES))
VALIDATION = SPLITS.index("val")
"""Where a row holds the log loss of the federation on the validation split."""


def num_outputs(num_clients: int, spread: bool = False) -> int:
    """Return the length of a row of outputs, with or without those of the spread of clients."""
    return len(SPLITS) * (1 + 3 * num_clients) + 1 + (SPREAD_OUTPUTS if spread else 0)


def client_shares(num_samples: NDArray[np.integer]) -> Floats:
    """Return each client's weight in the mean of a split, from (..., clients, splits) samples."""
    totals = np.maximum(num_samples.sum(axis=-2, keepdims=True), 1)
    return np.asarray(num_samples / totals, dtype=np.float64)


def to_outputs(
    metrics: NDArray[np.floating], best_round: NDArray[np.integer], weights: NDArray[np.floating]
) -> Singles:
    """Return the (n, outputs) rows that a model learns to predict."""
    n, clients = metrics.shape[:2]
    # What a client without samples in a split reports there means nothing and may be NaN.
    metrics = np.where(weights[..., None] > 0, metrics, 0.0)
    losses = metrics[..., _LOSS] * weights
    total = losses.sum(axis=1)
    share = losses / np.maximum(total, SMALLEST_LOSS)[:, None]
    return np.column_stack(
        [
            np.log(np.clip(total, SMALLEST_LOSS, LARGEST_LOSS)),
            metrics[..., _ACCURACY].swapaxes(1, 2).reshape(n, -1),
            metrics[..., _F1].swapaxes(1, 2).reshape(n, -1),
            share.swapaxes(1, 2).reshape(n, -1),
            *([_spread_of(metrics, weights)] if clients > COMPRESSED_CLIENTS else []),
            np.log(best_round),
        ]
    ).astype(np.float32)


def _spread_of(metrics: NDArray[np.floating], weights: NDArray[np.floating]) -> Floats:
    """Return (n, `SPREAD_OUTPUTS`) of (n, clients, splits, metrics)."""
    spreads = np.zeros((len(metrics), len(RATES), len(SPLITS), 2 + len(LEVELS)))
    for split in range(len(SPLITS)):
        split_weights = weights[:, :, split]
        present = np.maximum((split_weights > 0).sum(axis=1), 1)
        last = present[:, None] - 1
        below = (LEVELS * last).astype(np.int64)
        above, way = np.minimum(below + 1, last), LEVELS * last - below
        for which, metric in enumerate((_ACCURACY, _F1)):
            values = metrics[:, :, split, metric].astype(np.float64)
            ordered = np.sort(
                np.where(split_weights > 0, values, 2.0), axis=1
            )  # who is absent comes last
            low, high = (np.take_along_axis(ordered, at, axis=1) for at in (below, above))
            spreads[:, which, split, 0] = (split_weights * values).sum(axis=1)
            away = np.where(
                split_weights > 0, values - (values.sum(axis=1) / present)[:, None], 0.0
            )
            spreads[:, which, split, 1] = np.sqrt((away**2).sum(axis=1) / present)
            spreads[:, which, split, 2:] = np.minimum(low + way * (high - low), 1.0)
    return spreads.reshape(len(metrics), -1)


def to_metrics(
    outputs: NDArray[np.floating], weights: NDArray[np.floating], reads: Entries = ENTRIES
) -> Singles:
    """Return (n, clients, splits, metrics) in their ranges, of (n, outputs)."""
    n, (seeds, clients, splits) = len(outputs), weights.shape
    end = splits * (1 + 3 * clients)
    middle = outputs[:, splits:end].reshape(n // seeds, seeds, 3, splits, clients)
    spread = outputs[:, end:-1].reshape(n // seeds, seeds, len(RATES), splits, -1)
    weights = np.ascontiguousarray(weights.swapaxes(1, 2))
    present = weights > 0
    share = np.maximum(middle[:, :, 2], 0.0)
    if not present.all():
        share = np.where(present, share, 0.0)
    sums = sum_in_order(share, axis=-1)[..., None]
    if (some := sums > 0).all():
        share = np.divide(share, sums, dtype=weights.dtype)
    else:
        share = np.where(some, share, weights) / np.where(some, sums, 1.0)
    # A client without samples in a split has no loss there: its weight and its share are 0.
    share /= np.where(present, weights, 1.0)
    share *= np.exp(outputs[:, :splits, None]).reshape(n // seeds, seeds, splits, 1)
    metrics = np.full((n // seeds, seeds, clients, splits, len(METRICS)), np.nan, dtype=np.float32)
    metrics.swapaxes(2, 3)[..., _LOSS] = share
    which, where = _rates_of(reads)
    rates = np.minimum(np.maximum(middle[:, :, which, where], 0.0), 1.0)
    if spread.shape[-1]:
        spread = np.clip(spread[:, :, which, where], 0.0, 1.0)
        rates = _spread_out(rates, spread, weights[:, where])
    metrics[..., where, _ACCURACY + which] = rates.swapaxes(2, 3)
    return metrics.reshape(n, clients, splits, -1)


@functools.cache
def _rates_of(reads: Entries) -> tuple[Integers, Integers]:
    """Return which of `RATES` are read, and of which split."""
    needed = [(i, j) for i, m in enumerate(RATES) for j, s in enumerate(SPLITS) if (s, m) in reads]
    which, where = np.array(needed, dtype=np.int64).reshape(-1, 2).T
    return which, where


def _spread_out(rates: Reals, spread: Reals, weights: Reals) -> Floats:
    """Return rates of clients in their order, spread as was predicted.

    They are put at their quantiles, then moved: away from their mean until they have the standard
    deviation, and all together until they have the weighted mean.

    Shapes: `rates` (n, seeds, rates, clients); `spread` (n, seeds, rates, 2 + levels); `weights`
    (seeds, rates, clients).
    """
    present = weights > 0
    last = np.maximum(present.sum(axis=-1, keepdims=True) - 1, 1)
    share = np.minimum(np.arange(weights.shape[-1]) / last, 1.0)
    below = np.minimum(np.searchsorted(LEVELS, share, side="right"), len(LEVELS) - 1) - 1
    way = (share - LEVELS[below]) / (LEVELS[below + 1] - LEVELS[below])
    quantiles = np.maximum.accumulate(spread[..., 2:], axis=-1)
    low, high = (
        np.take_along_axis(quantiles, np.broadcast_to(at, rates.shape), axis=-1)
        for at in (below, below + 1)
    )
    order = np.argsort(np.where(present, rates, 2.0), axis=-1, kind="stable")
    spread_rates = np.empty(rates.shape)
    np.put_along_axis(spread_rates, order, low + way * (high - low), axis=-1)
    for _ in range(MOVES):
        spread_rates = _moved(
            _widened(spread_rates, spread[..., 1], present), spread[..., 0], weights
        )
    return spread_rates


def _widened(rates: Floats, target: Reals, present: Bools) -> Floats:
    """Return rates whose standard deviation over the clients there is nearer to another."""
    there = present.astype(np.float64)
    count = np.maximum(sum_in_order(there, axis=-1), 1.0)
    mean = sum_in_order(there * rates, axis=-1) / count
    away = rates - mean[..., None]
    now = np.sqrt(sum_in_order(there * away**2, axis=-1) / count)
    factor = np.minimum(np.divide(target, now, out=np.ones_like(now), where=now > 0), MOST_WIDENED)
    return np.asarray(np.clip(mean[..., None] + factor[..., None] * away, 0.0, 1.0))


def _moved(rates: Floats, target: Reals, weights: Reals) -> Floats:
    """Return rates whose weighted mean is nearer to another; those at 0 and 1 stay."""
    missing = target - sum_in_order(weights * rates, axis=-1)
    room = np.where(weights > 0, rates * (1.0 - rates), 0.0)
    total = sum_in_order(weights * room, axis=-1)
    step = np.where(total > 0, missing, 0.0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.clip(rates + step[..., None] * room, 0.0, 1.0))


def objectives(outputs: NDArray[np.floating], weights: NDArray[np.floating]) -> Floats:
    """Return (n, 2): validation accuracy and log validation loss of the federation."""
    _, clients, splits = weights.shape
    if outputs.shape[1] > num_outputs(clients):
        mean = np.clip(
            outputs[:, splits * (1 + 3 * clients) + VALIDATION * (2 + len(LEVELS))], 0, 1
        )
    else:
        start = splits + VALIDATION * clients
        accuracy = np.clip(outputs[:, start : start + clients], 0.0, 1.0)
        mean = (accuracy * weights[:, :, VALIDATION]).sum(axis=1)
    return np.column_stack([mean, outputs[:, VALIDATION]]).astype(np.float64)
