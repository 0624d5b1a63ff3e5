"""The surrogate of a search space of FedHPO-B: one ensemble of networks for all of its tasks.

A network reads a configuration and which task is asked, and answers scores: how a configuration
ranks in the task by every objective, as quantiles of a normal distribution. A task's own quantiles
turn scores into values, so that tasks of any scale, and trials that diverged, share one model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import as_reals, checked_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.stored.surrogate_models import (
    HIDDEN_BITS,
    MAX_HIDDEN,
    MAX_WEIGHT,
    MAX_WIDTH,
    ROW_BITS,
    WEIGHT_BITS,
    Exact,
    on_grid,
)

LOWEST, STEP, KNOTS = -2.5, 0.125, 41
"""Scores at which quantiles are known: from `LOWEST` on, so far apart, and how many."""
CHUNK: Final = 1024
"""Rows whose hidden values are held at once."""


def gate(sums: NDArray[Any]) -> NDArray[Any]:
    """Return x (1 + x / sqrt(1 + x^2)) / 2: smooth, and made of steps that are rounded exactly."""
    return np.asarray(sums * (1.0 + sums / np.sqrt(1.0 + sums * sums)) * 0.5)


class MetaSurrogate:
    """Predicts what a task measures of any configuration, with equal bits in any batch.

    Arrays, of E networks, T tasks, F features, Q objectives: `task_weight` (E, T, H); `weight_i`
    (E, inputs, outputs) and `bias_i` (E, outputs) of layers i = 0, 1, ..., the first from F, the
    last to Q; `quantiles` (T, Q, `KNOTS`), 0 or more, which do not fall.
    """

    @checked_types
    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = sum(name.startswith("weight_") for name in arrays)
        layers = [f"{part}_{layer}" for layer in range(count) for part in ("weight", "bias")]
        names = ["task_weight", "quantiles", *layers]
        if count < 2 or any(name not in arrays for name in names):
            raise InvalidArgumentError(
                "`arrays` of the surrogate of a search space must have task_weight, quantiles and "
                f"weight_0, bias_0, weight_1, ..., got {sorted(arrays)}"
            )
        self.arrays = {name: as_reals(name, arrays[name]) for name in names}
        if not all(np.isfinite(array).all() for array in self.arrays.values()):
            raise InvalidArgumentError("`arrays` of a surrogate must be finite numbers")
        grids = {name: on_grid(self.arrays[name], WEIGHT_BITS, MAX_WEIGHT) for name in names}
        self._weights = [grids[f"weight_{layer}"] for layer in range(count)]
        self._biases = [grids[f"bias_{layer}"] for layer in range(count)]
        self._quantiles = self.arrays["quantiles"].astype(np.float64)
        self._check(grids["task_weight"])
        self._bounded = 1.0 / (1.0 + self._quantiles)
        self._offsets = grids["task_weight"] + self._biases[0][:, None]

    def _check(self, of_tasks: Exact) -> None:
        weights = self._weights
        if of_tasks.ndim != 3 or any(weight.ndim != 3 for weight in weights):
            raise InvalidArgumentError("the layers of a surrogate have wrong axes")
        networks, tasks, _ = of_tasks.shape
        ends = [weight.shape[2] for weight in weights]
        fits = [weight.shape[:2] for weight in weights[1:]] == [
            (networks, end) for end in ends[:-1]
        ]
        biases = [bias.shape for bias in self._biases] == [(networks, end) for end in ends]
        tables = self._quantiles.shape == (tasks, ends[-1], KNOTS)
        first = of_tasks.shape[2] == ends[0] and len(weights[0]) == networks
        if not (fits and biases and tables and first and of_tasks.size and weights[-1].size):
            raise InvalidArgumentError("the arrays of a surrogate do not fit together")
        if max(weight.shape[1] for weight in weights) > MAX_WIDTH:
            raise InvalidArgumentError(f"a layer of a network must not exceed {MAX_WIDTH} inputs")
        if (np.diff(self._quantiles, prepend=0.0) < 0).any():
            raise InvalidArgumentError("`quantiles` of a surrogate must be 0 or more, and not fall")

    @property
    def num_tasks(self) -> int:
        """How many tasks it knows."""
        return len(self._quantiles)

    @property
    def num_features(self) -> int:
        """How many features a configuration has."""
        return int(self._weights[0].shape[1])

    def predict(self, tasks: ArrayLike, features: ArrayLike) -> Exact:
        """Return (n, Q) values of (n, F) features in one task, or in (n,) tasks, by position."""
        rows = as_reals("features", features)
        if rows.ndim != 2 or rows.shape[1] != self.num_features or not np.isfinite(rows).all():
            raise InvalidArgumentError(
                f"`features` must be rows of {self.num_features} finite numbers, got an array of "
                f"shape {rows.shape}"
            )
        asked = np.asarray(tasks)
        if (
            asked.dtype.kind not in "iu"
            or asked.shape not in ((), (len(rows),))
            or (asked.size and not (asked.min() >= 0 and asked.max() < self.num_tasks))
        ):
            raise InvalidArgumentError(
                f"`tasks` must be a position below {self.num_tasks}, or one for each of "
                f"{len(rows)} rows, got {tasks!r:.80}"
            )
        each = np.broadcast_to(asked, len(rows)).astype(np.intp)
        found = np.empty((len(rows), self._quantiles.shape[1]))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            found[part] = self._values(each[part], self._scores(each[part], rows[part]))
        return found

    def _scores(self, tasks: NDArray[np.intp], rows: NDArray[np.floating]) -> Exact:
        """Return (n, Q) means over networks; all sums are exact, in any order."""
        hidden = on_grid(2.0 * rows.astype(np.float64) - 1.0, ROW_BITS, 1.0)
        sums = hidden @ self._weights[0]
        sums += self._offsets[:, tasks]
        for weight, bias in zip(self._weights[1:], self._biases[1:], strict=True):
            hidden = on_grid(gate(sums), HIDDEN_BITS, MAX_HIDDEN)
            sums = hidden @ weight
            sums += bias[:, None]
        return np.asarray(sums.sum(axis=0) / len(sums))

    def _values(self, tasks: NDArray[np.intp], scores: Exact) -> Exact:
        """Return the quantiles at scores, never below 0.

        1 / (1 + v) is on a straight line between two of them, and below the lowest: what lies
        between a trial that works and one that diverged is not half as bad as the latter.
        """
        place = np.minimum((scores - LOWEST) / STEP, KNOTS - 1.0)
        left = np.clip(np.floor(place), 0, KNOTS - 2).astype(np.intp)
        at = tasks[:, None], np.arange(scores.shape[1])
        low, high = self._bounded[*at, left], self._bounded[*at, left + 1]
        values = 1.0 / np.maximum(low + (high - low) * (place - left), 1e-39) - 1.0
        return np.clip(values, 0.0, self._quantiles[*at, left + 1])
