"""How much a client learns in a round: products of hyperparameters, as columns of a model.

Learning rate, local epochs and batch size act together. The sum of a client's steps grows as
learning rate x epochs / batch size, the number of its steps as epochs / batch size (McMahan et al.,
2017, section 2; Smith et al., 2018). A model that sees them needs fewer courses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.space import Dimension, SearchSpace

RATE, EPOCHS, BATCH = "learning_rate", "step_size", "batch_size"
WORK = ((RATE, EPOCHS), (BATCH,)), ((EPOCHS,), (BATCH,)), ((EPOCHS,), ())
"""Factors and divisors of the products that new surrogates see."""
_NAME = re.compile(r"log\((\w+(?:\*\w+)*)((?:/\w+)*)\)")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Product:
    """The logarithm of a product of hyperparameters, scaled to [-1, 1] over a search space.

    Attributes:
        factors: names of what is multiplied.
        divisors: names of what it is divided by.
    """

    factors: tuple[str, ...]
    divisors: tuple[str, ...]

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
    """Return the products among the names of columns.

    Raises:
        KeyError: a product names no hyperparameter of the space.
        ValueError: a product is of what is not positive everywhere, or does not vary; or it names
            a hyperparameter twice.
    """
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
