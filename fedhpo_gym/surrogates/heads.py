"""A small network with one linear head per seed, evaluated exactly, with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.surrogates.exact import Exact, on_grid

ROW_BITS, WEIGHT_BITS, HIDDEN_BITS = 20, 14, 14
MAX_ROW, MAX_WEIGHT, MAX_HIDDEN, MAX_WIDTH = 8.0, 8.0, 256.0, 256
"""A row has 23 bits, a weight 17, a hidden value 22, and 256 products add 8: 48 of 53."""


class Heads:
    """Linear layers with rectifiers between them; the last one differs between seeds.

    Seeds of one configuration share all layers but the last, so three cost little more than one.
    """

    kind = "heads"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a network's arrays.

        Args:
            arrays: `weight_<i>` (inputs, outputs) and `bias_<i>` (outputs,) of hidden layer i,
                `heads` (seeds, hidden, outputs) and `head_bias` (seeds, outputs).

        Raises:
            InvalidArgumentError: an array is missing, or the layers do not fit together.
        """
        count = sum(name.startswith("weight_") for name in arrays)
        parts = [f"{part}_{layer}" for layer in range(count) for part in ("weight", "bias")]
        names = [*parts, "heads", "head_bias"]
        if not count or any(name not in arrays for name in names):
            raise InvalidArgumentError(
                f"a network with heads needs weight_0, bias_0, ..., heads and head_bias, got "
                f"{sorted(arrays)}"
            )
        self.arrays = {name: arrays[name] for name in names}
        grids = {n: on_grid(arrays[n], WEIGHT_BITS, MAX_WEIGHT) for n in names}
        self._weights = [grids[f"weight_{i}"] for i in range(count)]
        self._biases = [grids[f"bias_{i}"] for i in range(count)]
        self._heads, self._head_bias = grids["heads"], grids["head_bias"]
        self._check()

    def _check(self) -> None:
        weights, heads = self._weights, self._heads
        if heads.ndim != 3 or any(weight.ndim != 2 for weight in weights):
            raise InvalidArgumentError("the layers of a network with heads have wrong axes")
        sizes = [*(weight.shape for weight in weights), heads.shape[1:]]
        fits = all(a[1] == b[0] for a, b in pairwise(sizes))
        biases = all(w.shape[1:] == b.shape for w, b in zip(weights, self._biases, strict=True))
        if not (fits and biases and self._head_bias.shape == heads.shape[::2]):
            raise InvalidArgumentError("the layers of a network with heads do not fit together")
        if max(size[0] for size in sizes) > MAX_WIDTH:
            raise InvalidArgumentError(f"a layer of a network must not exceed {MAX_WIDTH} inputs")

    @property
    def num_features(self) -> int:
        """How many features a row must have."""
        return len(self._weights[0]) + len(self._heads)

    def predict(self, rows: NDArray[np.float32]) -> Exact:
        """Return (groups, rows, outputs); see `curves.CurveRegressor`."""
        seeds = len(self._heads)
        hidden = on_grid(rows[:, 0, :-seeds], ROW_BITS, MAX_ROW)
        for weight, bias in zip(self._weights, self._biases, strict=True):
            hidden = hidden @ weight
            hidden += bias
            hidden = on_grid(hidden, HIDDEN_BITS, MAX_HIDDEN, lowest=0.0)
        chosen = rows[..., -seeds:].argmax(axis=-1)
        first = chosen[0]
        if (chosen == first).all():  # every group has the same seeds: one product for all
            together = hidden @ np.concatenate(self._heads[first], axis=1)
            return np.asarray(together.reshape(*chosen.shape, -1) + self._head_bias[first])
        predicted = np.empty((*chosen.shape, self._heads.shape[2]))
        for column in range(chosen.shape[1]):
            for seed in np.unique(chosen[:, column]).tolist():
                where = np.flatnonzero(chosen[:, column] == seed)
                each = hidden if len(where) == len(hidden) else hidden[where]
                predicted[where, column] = each @ self._heads[seed] + self._head_bias[seed]
        return predicted
