"""What a surrogate's model sees of an evaluation.

One row per seed: the action coordinates of the configuration, how many clients really take part,
and which seed it is; it may be products of hyperparameters, too. The round is none of it: a model
predicts all rounds at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.space import SearchSpace
from fedhpo_gym.surrogates.products import Product, named_products

RATE = "client_sample_rate"
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CurveInputs:
    """The encoding of a surrogate's rows.

    The number of clients that take part is on a logarithmic scale of its own: few of many clients
    differ as much as many of few do.

    Attributes:
        space: configurations, as intervals.
        fidelity_space: rounds and client sample rates that it answers.
        num_clients: clients of the federation.
        seeds: the seeds the model has seen.
        products: products of hyperparameters that it sees.
    """

    space: SearchSpace
    fidelity_space: SearchSpace
    num_clients: int
    seeds: tuple[int, ...]
    products: tuple[Product, ...] = ()

    @classmethod
    def from_names(
        cls,
        names: Sequence[str],
        space: SearchSpace,
        fidelity_space: SearchSpace,
        num_clients: int,
        seeds: tuple[int, ...],
    ) -> Self:
        """Return the encoding whose columns a card names.

        Raises:
            ValueError: it names others, or has another order; see also `named_products`.
        """
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
        """Return the (B, S, columns) rows of B evaluations, one per seed.

        Args:
            columns: (B,) legal values of every dimension, by name.
            seed_rows: (S,) positions in `seeds`.
        """
        known = self._known(self.space.encode_columns(columns), columns[RATE])
        return _for_each_seed(known, seed_rows, len(self.seeds))

    def rows_of_one_seed(
        self,
        coordinates: NDArray[np.floating],
        rates: NDArray[np.floating],
        seed: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Return the (n, 1, columns) rows of n courses.

        Args:
            coordinates: (n, d) coordinates of the configurations; those of integers are where
                `space.encode` puts an integer.
            rates: (n,) client sample rates.
            seed: (n,) positions in `seeds`.
        """
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
        ends = self.fidelity_space[RATE]
        few, many = _sampled(np.array([ends.low, ends.high]), self.num_clients).tolist()
        if few == many:
            return np.zeros(len(rates))
        sampled = _sampled(rates, self.num_clients).tolist()
        logs = np.array([math.log(number / few) for number in sampled])
        return np.asarray(2.0 * logs / math.log(many / few) - 1.0)


def _sampled(rates: NDArray[np.floating], clients: int) -> NDArray[np.float64]:
    """Return how many clients take part, by the rule of `Fidelity.sampled_clients`."""
    return np.maximum(np.floor(np.asarray(rates, dtype=np.float64) * clients + 1e-9), 1.0)


def _for_each_seed(
    known: NDArray[np.floating], seed_rows: NDArray[np.int64], seeds: int
) -> NDArray[np.float32]:
    """Return (B, S, columns + seeds) rows: those of (B, columns) with every seed."""
    width = known.shape[1]
    rows = np.zeros((len(known), len(seed_rows), width + seeds), dtype=np.float32)
    rows[..., :width] = known[:, None]
    rows[:, np.arange(len(seed_rows)), width + seed_rows] = 1.0
    return rows
