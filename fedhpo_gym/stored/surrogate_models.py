"""Regression models of surrogates, evaluated with numpy alone and with reproducible bits.

There are three: `Forest` (regression trees), `MultiHeadNetwork` (layers with one head per seed) and
`ExactKernel` (a Matern kernel with fixed weights). `surrogate_curves` creates them from stored
arrays, and `building/candidates.py` fits them; `task_generator` and `meta_data` share only the grid
(`on_grid`). The network and the kernel round every factor to a fixed grid (`on_grid`), so that each
sum of products fits into the 53 bits of a float64. Such sums are exact in any order, so that
predictions depend neither on the batch nor on the BLAS library.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError

FOREST_ARRAYS = ("roots", "feature", "threshold", "children", "leaf", "values")

INDICES = ("roots", "feature", "children", "leaf")
TOGETHER = 1 << 14
"""Pairs of a row and a tree that are evaluated together; it bounds the memory of a batch."""


class Forest:
    """The mean over trees of the leaf of a row; a value up to the threshold goes left.

    A leaf is its own child on both sides, so that all rows take the same number of steps in all
    trees. Arrays: roots (trees,), feature, threshold and leaf (nodes,), children (nodes, 2), values
    (leaves, outputs).
    """

    kind = "forest"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = _needed("forest", FOREST_ARRAYS, arrays)
        if any(arrays[name].dtype.kind not in "iu" for name in INDICES):
            raise InvalidArgumentError(f"the arrays {INDICES} of a forest must be integers")
        self._roots = arrays["roots"].astype(np.int64)
        self._feature = arrays["feature"].astype(np.int64)
        self._threshold = arrays["threshold"].astype(np.float32)
        self._children = arrays["children"].astype(np.int64)
        self._leaf = arrays["leaf"].astype(np.int64)
        self._values = arrays["values"].astype(np.float32)
        self._check()
        self._steps = self._depth()

    @property
    def num_features(self) -> int:
        """Smallest number of features of a row."""
        return int(self._feature.max()) + 1

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features); rows do not affect each other."""
        return self._predict(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], -1)

    def _predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        flat, start = rows.ravel(), np.arange(len(rows)) * rows.shape[1]
        sides = self._children.ravel()
        total = np.zeros((len(rows), self._values.shape[1]), dtype=np.float64)
        trees = max(1, TOGETHER // max(1, len(rows)))
        for first in range(0, len(self._roots), trees):
            node = np.repeat(
                self._roots[first : first + trees, None], len(rows), axis=1
            )  # (trees, n)
            for _ in range(self._steps):
                feature_values = flat.take(self._feature.take(node) + start)
                node = sides.take(2 * node + (feature_values > self._threshold.take(node)))
            for leaves in self._leaf.take(node):  # one tree at a time: memory stays (n, outputs)
                total += self._values.take(leaves, axis=0)
        return (total / len(self._roots)).astype(np.float32)

    def _depth(self) -> int:
        """Return the depth of the deepest tree; `_check` ensures that this ends."""
        level, steps = self._roots, 0
        while len(inner := level[self._leaf[level] < 0]):
            level, steps = self._children[inner].ravel(), steps + 1
        return steps

    def _check(self) -> None:
        nodes, leaves = len(self._feature), len(self._values)
        children_fit = self._children.shape == (nodes, 2) and _within(self._children, 0, nodes)
        if not (
            children_fit
            and self._roots.ndim == 1
            and self._feature.shape == self._threshold.shape == self._leaf.shape == (nodes,)
            and self._values.ndim == 2
            and _within(self._roots, 0, nodes)
            and _within(self._leaf, -1, leaves)
            and self._feature.min() >= 0
        ):
            raise InvalidArgumentError("the arrays of a forest do not fit together")
        inner = self._leaf < 0
        if (self._children[~inner] != np.flatnonzero(~inner)[:, None]).any():
            raise InvalidArgumentError("a leaf of a forest must be its own child on both sides")
        # If every node has at most one parent, no path contains a loop and no level of `_depth`
        # grows exponentially.
        reached = np.concatenate([self._roots, self._children[inner].ravel()])
        if np.bincount(reached).max() > 1:
            raise InvalidArgumentError(
                "`children` must form trees, but a node is reached over two ways: they form a loop"
            )

    @classmethod
    def from_nodes(
        cls, trees: Sequence[Mapping[str, NDArray[Any]]], dtype: type[np.floating] = np.float32
    ) -> Self:
        """Build a forest from trees in the layout of scikit-learn."""
        starts = np.cumsum([0, *(len(tree["feature"]) for tree in trees)])
        small = np.int16 if starts[-1] < 2**15 else np.int32
        is_leaf = np.concatenate([tree["left"] < 0 for tree in trees])
        node_indices = np.arange(starts[-1])
        sides = [
            np.concatenate([tree[side] + start for tree, start in zip(trees, starts, strict=False)])
            for side in ("left", "right")
        ]
        feature = np.concatenate([tree["feature"] for tree in trees])
        threshold = np.concatenate([tree["threshold"] for tree in trees])
        children = np.where(is_leaf[:, None], node_indices[:, None], np.stack(sides, axis=1))
        values = np.concatenate([tree["value"][tree["left"] < 0] for tree in trees])
        return cls(
            {
                "roots": starts[:-1].astype(small),
                "feature": np.where(is_leaf, 0, feature).astype(np.int16),
                "threshold": _round_down(np.where(is_leaf, 0.0, threshold)),
                "children": children.astype(small),
                "leaf": np.where(is_leaf, np.cumsum(is_leaf) - 1, -1).astype(small),
                "values": values.astype(dtype),
            }
        )


def _round_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest float32 not above a threshold: float32 rows then take the same branch."""
    rounded = threshold.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > threshold, below, rounded)


def _needed(
    what: str, names: Sequence[str], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    if missing := [name for name in names if name not in arrays]:
        raise InvalidArgumentError(f"a {what} needs the arrays {names}, {missing} are missing")
    return {name: arrays[name] for name in names}


def _within(array: NDArray[np.int64], low: int, end: int) -> bool:
    return bool(array.size and array.min() >= low and array.max() < end)


Exact = NDArray[np.float64]


def on_grid(
    values: NDArray[np.generic], bits: int, limit: float = math.inf, lowest: float = -math.inf
) -> Exact:
    """Return the nearest multiples of 2^-bits, clipped to [max(-limit, lowest), limit]."""
    grid: Exact = np.multiply(values, 2.0**bits, dtype=np.float64)
    if limit < math.inf:
        low, high = max(-limit, lowest) * 2.0**bits, limit * 2.0**bits
        np.minimum(np.maximum(grid, low, out=grid), high, out=grid)
    np.rint(grid, out=grid)
    grid *= 2.0**-bits
    return grid


ROW_BITS, WEIGHT_BITS, HIDDEN_BITS = 20, 14, 14
MAX_ROW, MAX_WEIGHT, MAX_HIDDEN, MAX_WIDTH = 8.0, 8.0, 256.0, 256
"""A row has 23 bits, a weight 17, a hidden value 22, and 256 products add 8: 48 of 53."""


class MultiHeadNetwork:
    """Linear layers with rectifiers between them and one output layer (head) per seed.

    Arrays: weight_i (inputs, outputs) and bias_i (outputs,) of the shared layers, heads (seeds,
    hidden, outputs), head_bias (seeds, outputs). A row is features and a one-hot seed.
    """

    kind = "heads"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = sum(name.startswith("weight_") for name in arrays)
        parts = [f"{kind}_{layer}" for layer in range(count) for kind in ("weight", "bias")]
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
        """Number of features of a row, with the one-hot seed."""
        return len(self._weights[0]) + len(self._heads)

    def predict(self, rows: NDArray[np.float32]) -> Exact:
        """Return (groups, rows, outputs); rows of a group differ in their seed only."""
        seeds = len(self._heads)
        hidden = on_grid(rows[:, 0, :-seeds], ROW_BITS, MAX_ROW)  # (groups, features)
        for weight, bias in zip(self._weights, self._biases, strict=True):
            hidden = hidden @ weight
            hidden += bias
            hidden = on_grid(hidden, HIDDEN_BITS, MAX_HIDDEN, lowest=0.0)
        seed_indices = rows[..., -seeds:].argmax(axis=-1)  # (groups, rows)
        first = seed_indices[0]
        if (seed_indices == first).all():  # every group has the same seeds: one product for all
            together = hidden @ np.concatenate(self._heads[first], axis=1)
            return np.asarray(together.reshape(*seed_indices.shape, -1) + self._head_bias[first])
        predicted = np.empty((*seed_indices.shape, self._heads.shape[2]))
        for column in range(seed_indices.shape[1]):
            for seed in np.unique(seed_indices[:, column]).tolist():
                where = np.flatnonzero(seed_indices[:, column] == seed)
                each = hidden if len(where) == len(hidden) else hidden[where]
                predicted[where, column] = each @ self._heads[seed] + self._head_bias[seed]
        return predicted


KERNEL_ARRAYS = ("stretch", "points", "weights")

POINT_BITS, MAX_POINT, KERNEL_BITS, KERNEL_WEIGHT_BITS = 20, 4.0, 24, 17
MAX_POINTS, MAX_FEATURES = 2048, 64
"""Two rows have 23 bits each and 64 products add 6: 52 of 53. A kernel has 24 bits, a weight 18
with its sign, and 2,048 products add 11: 53 of 53, the sign of a float64 aside."""
CHUNK = 2048
"""Rows whose kernels are in memory at the same time."""


def matern(rows: NDArray[np.floating], points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the (n, m) Matern 3/2 kernel of stretched rows (n, c) and points (m, c).

    k = (1 + sqrt(3) r) exp(-sqrt(3) r) at distance r (Rasmussen and Williams, 2006, eq. 4.17).
    """
    squares = (rows**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2.0 * rows @ points.T
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0))
    return np.asarray((1.0 + distance) * np.exp(-distance), dtype=np.float64)


class ExactKernel:
    """The kernel between a row and every training point, times weights, in exact products.

    Arrays: stretch (features,), points (points, features), weights (points, outputs).
    """

    kind = "exact_kernel"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = _needed("kernel", KERNEL_ARRAYS, arrays)
        self._stretch, points, weights = (arrays[name].astype(np.float64) for name in KERNEL_ARRAYS)
        if weights.ndim != 2 or points.shape != (len(weights), *self._stretch.shape):
            raise InvalidArgumentError("the arrays of a kernel do not fit together")
        if len(weights) > MAX_POINTS or len(self._stretch) > MAX_FEATURES:
            raise InvalidArgumentError(
                f"a kernel must have at most {MAX_POINTS} points and {MAX_FEATURES} features"
            )
        self._points = on_grid(points, POINT_BITS, MAX_POINT)
        largest = np.abs(weights).max(axis=0)
        # Each output is scaled by a power of two, so that its weights lie in [-1, 1] on the grid.
        self._unit = 2.0 ** np.ceil(np.log2(np.maximum(largest, 1e-30)))
        self._weights = on_grid(weights / self._unit, KERNEL_WEIGHT_BITS, 1.0)

    @property
    def num_features(self) -> int:
        """Number of features of a row."""
        return len(self._stretch)

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features)."""
        flat = rows.reshape(-1, rows.shape[-1])
        parts = []
        for start in range(0, len(flat), CHUNK):
            stretched = on_grid(flat[start : start + CHUNK] * self._stretch, POINT_BITS, MAX_POINT)
            parts.append(on_grid(matern(stretched, self._points), KERNEL_BITS) @ self._weights)
        predicted = np.concatenate(parts) * self._unit
        return np.asarray(predicted.reshape(*rows.shape[:-1], -1), dtype=np.float32)
