"""A forest of regression trees in five arrays, evaluated with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

ARRAYS = ("roots", "feature", "threshold", "children", "leaf", "values")

INDICES = ("roots", "feature", "children", "leaf")
TOGETHER = 1 << 14
"""Ways down that are walked together: of few rows down all trees, of many down one."""


class Forest:
    """The mean over trees of the value of the leaf that a row falls into.

    A row goes left where its feature is at most the threshold. A leaf is its own child on both
    sides, so all rows take the same number of steps down all trees.
    """

    kind = "forest"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a forest's arrays.

        Args:
            arrays: `roots` (trees,), `feature` and `threshold` (nodes,), `children` (nodes, 2)
                with node numbers over all trees, `leaf` (nodes,) row in `values` or -1,
                `values` (leaves, outputs).

        Raises:
            InvalidArgumentError: an array is missing, or the arrays do not form trees.
        """
        missing = [name for name in ARRAYS if name not in arrays]
        if missing:
            raise InvalidArgumentError(f"a forest needs the arrays {ARRAYS}, {missing} are missing")
        self.arrays = {name: arrays[name] for name in ARRAYS}
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
        """How many features a row must have, at least."""
        return int(self._feature.max()) + 1

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features); every row is on its own."""
        outputs = self._predict(rows.reshape(-1, rows.shape[-1]))
        return outputs.reshape(*rows.shape[:-1], -1)

    def _predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        flat, start = rows.ravel(), np.arange(len(rows)) * rows.shape[1]
        sides = self._children.ravel()
        total = np.zeros((len(rows), self._values.shape[1]), dtype=np.float64)
        trees = max(1, TOGETHER // max(1, len(rows)))
        for first in range(0, len(self._roots), trees):
            node = np.repeat(self._roots[first : first + trees, None], len(rows), axis=1)
            for _ in range(self._steps):
                seen = flat.take(self._feature.take(node) + start)
                node = sides.take(2 * node + (seen > self._threshold.take(node)))
            for leaves in self._leaf.take(node):  # one tree at a time: memory stays (n, outputs)
                total += self._values.take(leaves, axis=0)
        return (total / len(self._roots)).astype(np.float32)

    def _depth(self) -> int:
        """Return the longest way from a root to a leaf; every node is met at most once."""
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
        # What is reached over two ways at most once from anywhere holds no loop that a row can
        # Where every node is reached over one way, no row runs in a loop and no level doubles.
        reached = np.concatenate([self._roots, self._children[inner].ravel()])
        if np.bincount(reached).max() > 1:
            raise InvalidArgumentError(
                "`children` must form trees, but a node is reached over two ways: they form a loop"
            )

    @classmethod
    def from_nodes(
        cls,
        trees: Sequence[Mapping[str, NDArray[Any]]],
        dtype: type[np.floating] = np.float32,
    ) -> Self:
        """Build a forest from trees as scikit-learn lays them out.

        Args:
            trees: per tree `feature`, `threshold`, `left`, `right` (nodes,), a leaf where `left`
                is negative, and `value` (nodes, outputs).
            dtype: how values of leaves are stored.
        """
        starts = np.cumsum([0, *(len(tree["feature"]) for tree in trees)])
        small = np.int16 if starts[-1] < 2**15 else np.int32
        is_leaf = np.concatenate([tree["left"] < 0 for tree in trees])
        own = np.arange(starts[-1])
        sides = [
            np.concatenate([tree[side] + start for tree, start in zip(trees, starts, strict=False)])
            for side in ("left", "right")
        ]
        feature = np.concatenate([tree["feature"] for tree in trees])
        threshold = np.concatenate([tree["threshold"] for tree in trees])
        children = np.where(is_leaf[:, None], own[:, None], np.stack(sides, axis=1))
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
    """Return the largest float32 not above: every float32 row then turns the same way."""
    rounded = threshold.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > threshold, below, rounded)


def _within(array: NDArray[np.int64], low: int, end: int) -> bool:
    return bool(array.size and array.min() >= low and array.max() < end)
