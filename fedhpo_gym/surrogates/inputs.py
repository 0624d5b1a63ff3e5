"""What a surrogate's model sees of an evaluation.

One row per seed: the action coordinates of the configuration, the logarithm of the round, the
share of clients that really take part, and which seed it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import SearchSpace


@dataclass(frozen=True)
class InputEncoding:
    """The encoding of one surrogate.

    Attributes:
        space: configurations, as intervals.
        max_round: the last round the model has seen.
        num_clients: clients of the federation.
        seeds: the seeds the model has seen.
    """

    space: SearchSpace
    max_round: int
    num_clients: int
    seeds: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        seeds = (f"seed={seed}" for seed in self.seeds)
        return (*self.space.names, "log_round", "client_share", *seeds)

    def one(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seed_rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the (S, columns) rows of one evaluation, one per seed.

        Raises:
            InvalidArgumentError: the configuration is not legal.
        """
        row = np.zeros((len(seed_rows), len(self.names)), dtype=np.float32)
        n = len(self.space)
        row[:, :n] = self.space.encode(configuration)
        row[:, n] = self._round(math.log(fidelity.round))
        row[:, n + 1] = 2.0 * fidelity.sampled_clients(self.num_clients) / self.num_clients - 1.0
        row[np.arange(len(seed_rows)), n + 2 + seed_rows] = 1.0
        return row

    def many(
        self, coordinates: ArrayLike, rounds: ArrayLike, rates: ArrayLike, seed_rows: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the (n, columns) rows of many evaluations, one seed each.

        Args:
            coordinates: (n, d) coordinates of the configurations in [-1, 1]; those of integers
                are where `space.encode` puts an integer.
            rounds: (n,) rounds.
            rates: (n,) client sample rates.
            seed_rows: (n,) positions in `seeds`.
        """
        where = np.asarray(seed_rows, dtype=np.int64)
        # The same rule as Fidelity.sampled_clients: a rate acts through whole clients only.
        sampled = np.floor(np.asarray(rates, dtype=np.float64) * self.num_clients + 1e-9)
        return np.column_stack(
            [
                np.asarray(coordinates, dtype=np.float32),
                self._round(np.log(np.asarray(rounds, dtype=np.float64))),
                2.0 * np.maximum(sampled, 1.0) / self.num_clients - 1.0,
                np.eye(len(self.seeds), dtype=np.float32)[where],
            ]
        ).astype(np.float32)

    def _round(self, log_round: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        return 2.0 * log_round / max(math.log(self.max_round), 1.0) - 1.0
