"""What a surrogate's model sees: coordinates, how many clients take part, and the seed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

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
    products: tuple[Product, ...] = ()  # products of hyperparameters that it sees

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
        found = cls(space, fidelity_space, num_clients, seeds, named_products(names, space))
        if tuple(names) != found.names or len(set(names)) < len(names):
            raise ValueError(f"`inputs` must be {[*found.names][:20]}, each once and in this order")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        products = (product.name for product in self.products)
        seeds = (f"seed={seed}" for seed in self.seeds)
        return (*self.space.names, "log_clients", *products, *seeds)

    def rows(self, columns: Columns, seed_rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the (B, S, columns) rows of B evaluations, one for each of `seed_rows` (S,)."""
        known = self._known(self.space.encode_columns(columns), columns[SAMPLE_RATE])
        width = known.shape[1]
        shape = (len(known), len(seed_rows), width + len(self.seeds))
        rows = np.zeros(shape, dtype=np.float32)
        rows[..., :width] = known[:, None]
        rows[:, np.arange(len(seed_rows)), width + seed_rows] = 1.0
        return rows

    def rows_of_one_seed(
        self,
        coordinates: NDArray[np.floating],
        rates: NDArray[np.floating],
        seed: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Return (n, 1, columns) rows of (n, d) coordinates, (n,) rates and the (n,) `seed`."""
        eye = np.eye(len(self.seeds), dtype=np.float32)[seed]
        known = self._known(coordinates.astype(np.float32), rates)
        return np.column_stack([known.astype(np.float32), eye])[:, None]

    def _known(
        self, coordinates: NDArray[np.float32], rates: NDArray[np.floating]
    ) -> NDArray[np.float64]:
        exact = coordinates.astype(np.float64)
        products = (product.column(self.space, exact) for product in self.products)
        return np.column_stack([exact, self._log_clients(rates), *products])

    def _log_clients(self, rates: NDArray[np.floating]) -> NDArray[np.float64]:
        ends = self.fidelity_space[SAMPLE_RATE]
        few, many = _sampled(np.array([ends.low, ends.high]), self.num_clients).tolist()
        if few == many:
            return np.zeros(len(rates))
        sampled = _sampled(rates, self.num_clients).tolist()
        logs = np.array([math.log(number / few) for number in sampled])
        return np.asarray(2.0 * logs / math.log(many / few) - 1.0)


def _sampled(rates: NDArray[np.floating], clients: int) -> NDArray[np.float64]:
    """Return how many clients take part, by the rule of `Fidelity.sampled_clients`."""
    return np.maximum(np.floor(np.asarray(rates, dtype=np.float64) * clients + 1e-9), 1.0)


RATE, EPOCHS, BATCH = "learning_rate", "step_size", "batch_size"
WORK = ((RATE, EPOCHS), (BATCH,)), ((EPOCHS,), (BATCH,)), ((EPOCHS,), ())
"""Factors and divisors of the products that new surrogates see."""
_NAME = re.compile(r"log\((\w+(?:\*\w+)*)((?:/\w+)*)\)")

Array = NDArray[np.float64]


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

    def column(self, space: SearchSpace, coordinates: Array) -> Array:
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
    found = (
        Product(*(tuple(name for name in names if name in open_) for names in both))
        for both in WORK
    )
    some = (product for product in found if product.factors and EPOCHS in open_)
    return tuple(dict.fromkeys(some))


def named_products(names: Iterable[str], space: SearchSpace) -> tuple[Product, ...]:
    """Return the products among the names of columns."""
    matches = (_NAME.fullmatch(name) for name in names)
    found = tuple(Product(tuple(m[1].split("*")), tuple(m[2].split("/")[1:])) for m in matches if m)
    for product in found:
        if len(set(product.dimensions)) < len(product.dimensions):
            raise ValueError(f"{product.name[:80]} must name every hyperparameter once")
        for name in product.dimensions:
            dimension = space[name]
            if dimension.values is not None or not 0 < dimension.low < dimension.high:
                raise ValueError(f"{product.name} is no number everywhere between {dimension}")
    return found


def _log(dimension: Dimension, coordinates: Array) -> Array:
    """Return natural logarithms of the values at (n,) coordinates."""
    if dimension.log and dimension.kind == "float":
        start, stop = math.log(dimension.low), math.log(dimension.high)
        return np.asarray(start + (coordinates + 1.0) / 2.0 * (stop - start))
    # One by one: numpy's logarithm is not the same on every processor. Integers are few.
    distinct, where = np.unique(coordinates, return_inverse=True)
    values = dimension.decode_many(distinct)
    return np.array([*map(math.log, values.tolist())])[where]
