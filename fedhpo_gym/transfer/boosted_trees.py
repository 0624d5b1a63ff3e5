"""Boosted trees in XGBoost's JSON, added up with numpy: no library is needed to ask them.

HPO-B's surrogates are such files (Pineda Arango et al., 2021). Sums are in single precision and in
XGBoost's order, so that responses are its own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import as_reals
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.transfer.documents import document, reading


class Trees(NamedTuple):
    """The nodes of all trees of a model, one after another; N nodes, T trees."""

    left: NDArray[np.int64]  # (N,) node to go to where the feature is below `value`; -1 at a leaf
    right: NDArray[np.int64]  # (N,) and elsewhere
    feature: NDArray[np.int64]  # (N,)
    value: NDArray[np.float32]  # (N,) threshold of a split, response of a leaf
    missing_left: NDArray[np.bool_]  # (N,) where to go without a feature
    roots: NDArray[np.int64]  # (T,)
    base: np.float32
    features: int


class BoostedTrees:
    """Boosted regression trees in XGBoost's JSON, read when they are first asked.

    Attributes:
        y_min: the response that counts as 0.
        y_max: the response that counts as 1.
    """

    def __init__(self, path: Path, y_min: float, y_max: float) -> None:
        self._path, self.y_min, self.y_max = path, y_min, y_max

    @cached_property
    def trees(self) -> Trees:
        """The model.

        Raises:
            DamagedDataError: the file holds no trees for squared errors.
        """
        with reading(self._path):
            return _trees(document(self._path)["learner"])

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """Return the (n,) responses at (n, F) points; NaN is a value that is missing."""
        trees, points = self.trees, as_reals("x", x).astype(np.float32)
        if points.ndim != 2 or points.shape[1] != trees.features:
            raise InvalidArgumentError(
                f"`x` must have rows of {trees.features} values, got an array of shape "
                f"{points.shape}"
            )
        rows = np.arange(len(points))[:, None]
        node = np.tile(trees.roots, (len(points), 1))
        while (is_inner := trees.left[node] >= 0).any():
            known = points[rows, trees.feature[node]]
            is_left = np.where(np.isnan(known), trees.missing_left[node], known < trees.value[node])
            node = np.where(is_inner, np.where(is_left, trees.left[node], trees.right[node]), node)
        start = np.full((len(points), 1), trees.base)
        return np.cumsum(np.hstack([start, trees.value[node]]), axis=1, dtype=np.float32)[:, -1]


def _trees(learner: Mapping[str, Any]) -> Trees:
    booster, settings = learner["gradient_booster"], learner["learner_model_param"]
    kind = (learner["objective"]["name"], booster["name"], settings["num_class"])
    if kind != ("reg:squarederror", "gbtree", "0") or settings.get("num_target", "1") != "1":
        raise ValueError(f"it is a model of another kind, {kind}")
    features, count = int(settings["num_feature"]), 0
    parts, roots = [], []
    for tree in booster["model"]["trees"]:
        parts.append(_tree(tree, features, count))
        roots.append(count)
        count += len(parts[-1][0])
    left, right, feature, value, missing_left = map(np.concatenate, zip(*parts, strict=True))
    base = np.float32(settings["base_score"].strip("[]"))
    if not np.isfinite(base):
        raise ValueError(f"its base_score is {base}")
    return Trees(left, right, feature, value, missing_left, np.array(roots), base, features)


def _tree(tree: Mapping[str, Any], features: int, first: int) -> tuple[NDArray[Any], ...]:
    """Return the nodes of a tree, numbered from the first; none is reached in two ways."""
    left, right, feature = (
        np.array(tree[name], np.int64)
        for name in ("left_children", "right_children", "split_indices")
    )
    value = np.array(tree["split_conditions"], np.float32)
    missing_left = np.array(tree["default_left"], np.bool_)
    is_inner = left >= 0
    children = np.concatenate([left[is_inner], right[is_inner]])
    is_tree = (
        len({len(one) for one in (left, right, feature, value, missing_left)}) == 1
        and len(np.unique(children)) == len(children)
        and bool(((children > 0) & (children < len(left))).all())
        and bool(((feature >= 0) & (feature < features)).all())
        and bool(np.isfinite(value).all())
    )
    if not len(left) or not is_tree or any(tree.get("split_type", ())):
        raise ValueError("one of its trees is none of numeric splits")
    return np.where(is_inner, left + first, -1), right + first, feature, value, missing_left
