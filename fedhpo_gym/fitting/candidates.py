"""The models a surrogate is chosen from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import missing_dependency
from fedhpo_gym.fitting.data import PreparedRows
from fedhpo_gym.fitting.network import WIDTHS, train_network
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.forest import Forest
from fedhpo_gym.surrogates.kernel import Kernel, matern
from fedhpo_gym.surrogates.model import OutcomeModel, Regressor

FOREST_TREES = (10, 20)
FOREST_DEPTHS = (10, 15, 20)
"""What FedHPO-Bench chooses its random forests from (paper, appendix H.2)."""
FEWEST_STEPS = 700
"""Of a network on few rows, whatever its epochs."""
KERNEL_POINTS, KERNEL_WIDTHS, KERNEL_RIDGES = 1_000, (1.0, 2.0, 4.0), (0.01, 0.1)
BOOSTED_TREES, BOOSTED_DEPTH, BOOSTED_RATE, BOOSTED_SHARE = 80, 5, 0.1, 0.7


@dataclass(frozen=True)
class Candidate:
    """One way to fit a surrogate.

    Attributes:
        name: how the card calls it.
        kind: kind of its regressors, see `surrogates.model.KINDS`.
        settings: what decides the fit, for the card.
        fit: returns one regressor per variant, from (n, features) rows, standardised (n, outputs)
            targets, and whether this is the final fit on many rows.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    fit: Callable[[NDArray[np.float32], NDArray[np.float32], bool], dict[str, Regressor]]

    def models(self, rows: PreparedRows, *, final: bool = False) -> dict[str, OutcomeModel]:
        """Return the fitted model of every variant."""
        fitted = self.fit(rows.inputs, rows.targets, final)
        return {
            variant: OutcomeModel(regressor, rows.scales, rows.compression)
            for variant, regressor in fitted.items()
        }


def _random_forests(
    rows: NDArray[np.float32], targets: NDArray[np.float32], _final: bool
) -> dict[str, Regressor]:
    """Fit once, read off all variants.

    A tree cut at a depth is the tree grown to that depth, and ten of twenty trees are a forest of
    ten: the trees are independent and a split does not depend on what is below it.
    """
    ensemble = _ensemble(
        "RandomForestRegressor", n_estimators=max(FOREST_TREES), max_depth=max(FOREST_DEPTHS)
    ).fit(rows, targets)
    return {
        forest_variant(count, depth): forest_of(ensemble, count, depth)
        for count in FOREST_TREES
        for depth in FOREST_DEPTHS
    }


def _extra_trees(
    rows: NDArray[np.float32], targets: NDArray[np.float32], _final: bool
) -> dict[str, Regressor]:
    ensemble = _ensemble("ExtraTreesRegressor", n_estimators=10, max_depth=20).fit(rows, targets)
    return {"": forest_of(ensemble)}


def _compact_trees(
    rows: NDArray[np.float32], targets: NDArray[np.float32], _final: bool
) -> dict[str, Regressor]:
    ensemble = _ensemble("ExtraTreesRegressor", n_estimators=5, max_leaf_nodes=900)
    return {"": forest_of(ensemble.fit(rows, targets), dtype=np.float16)}


def _boosted_trees(
    rows: NDArray[np.float32], targets: NDArray[np.float32], _final: bool
) -> dict[str, Regressor]:
    """Fit trees one after the other, each on a share of what those before left over.

    Stochastic gradient boosting of the squared error (Friedman, 2002), all outputs in one tree. A
    forest is a mean, so its values are the steps times the number of trees.
    """
    rng = stream(0, "boosted_trees")
    left = targets.astype(np.float64)
    trees = []
    for _ in range(BOOSTED_TREES):
        chosen = rng.permutation(len(rows))[: max(int(BOOSTED_SHARE * len(rows)), 1)]
        tree = _fitter("tree", "DecisionTreeRegressor", max_depth=BOOSTED_DEPTH)
        tree.fit(rows[chosen], left[chosen])
        left -= BOOSTED_RATE * tree.predict(rows).reshape(left.shape)
        nodes = _nodes(tree.tree_, None)
        trees.append({**nodes, "value": nodes["value"] * (BOOSTED_RATE * BOOSTED_TREES)})
    return {"": Forest.from_nodes(trees, np.float16)}


def _kernel_ridge(
    rows: NDArray[np.float32], targets: NDArray[np.float32], _final: bool
) -> dict[str, Regressor]:
    """Fit one machine per width and ridge; columns are stretched by what they matter to a forest.

    Kernel ridge regression on at most `KERNEL_POINTS` rows; the mean of a Gaussian process.
    """
    forest = _ensemble("ExtraTreesRegressor", n_estimators=10, max_depth=10).fit(rows, targets)
    matters = np.sqrt(forest.feature_importances_)
    matters = np.maximum(matters / max(matters.max(), 1e-12), 0.05)
    rng = stream(0, "kernel_ridge")
    chosen = np.sort(rng.permutation(len(rows))[:KERNEL_POINTS])
    fitted: dict[str, Regressor] = {}
    for width in KERNEL_WIDTHS:
        stretch = (matters / width).astype(np.float32)
        points = rows[chosen] * stretch
        gram = matern(points.astype(np.float64), points.astype(np.float64))
        for ridge in KERNEL_RIDGES:
            weights = np.linalg.solve(gram + ridge * np.eye(len(points)), targets[chosen])
            arrays = {"stretch": stretch, "points": points, "weights": weights.astype(np.float32)}
            fitted[f"width={width}, ridge={ridge}"] = Kernel(arrays)
    return fitted


def _network(
    rows: NDArray[np.float32], targets: NDArray[np.float32], final: bool
) -> dict[str, Regressor]:
    batch, epochs = (512, 12) if final else (256, 25)
    batch = min(batch, len(rows))
    steps = max(epochs * (len(rows) // batch), FEWEST_STEPS)
    return {"": train_network(rows, targets, steps=steps, batch=batch)}


CANDIDATES: Mapping[str, Candidate] = MappingProxyType(
    {
        candidate.name: candidate
        for candidate in (
            Candidate(
                "random_forest",
                "forest",
                {"n_estimators": list(FOREST_TREES), "max_depth": list(FOREST_DEPTHS)},
                _random_forests,
            ),
            Candidate("extra_trees", "forest", {"n_estimators": 10, "max_depth": 20}, _extra_trees),
            Candidate(
                "compact_extra_trees",
                "forest",
                {"n_estimators": 5, "max_leaf_nodes": 900, "stored": "float16"},
                _compact_trees,
            ),
            Candidate(
                "boosted_trees",
                "forest",
                {
                    "n_estimators": BOOSTED_TREES,
                    "max_depth": BOOSTED_DEPTH,
                    "learning_rate": BOOSTED_RATE,
                    "subsample": BOOSTED_SHARE,
                    "stored": "float16",
                },
                _boosted_trees,
            ),
            Candidate(
                "kernel_ridge",
                "kernel",
                {
                    "kernel": "Matern 3/2",
                    "points": f"at most {KERNEL_POINTS}",
                    "width": list(KERNEL_WIDTHS),
                    "ridge": list(KERNEL_RIDGES),
                    "stretch": "root of the importance to 10 extra trees",
                },
                _kernel_ridge,
            ),
            Candidate(
                "network",
                "network",
                {
                    "widths": list(WIDTHS),
                    "optimizer": "Adam, cosine schedule, Huber loss",
                    "epochs": "25 of batch 256 to compare, 12 of batch 512 in the end, at least "
                    f"{FEWEST_STEPS} steps",
                    "stored": "float16",
                },
                _network,
            ),
        )
    }
)


def forest_variant(count: int, depth: int) -> str:
    """Return how the card calls one setting of the random forest."""
    return f"n_estimators={count}, max_depth={depth}"


def forest_of(
    ensemble: Any,
    count: int | None = None,
    depth: int | None = None,
    dtype: type[np.floating] = np.float32,
) -> Forest:
    """Return the first trees of a fitted scikit-learn ensemble, cut at a depth."""
    trees = [fitted.tree_ for fitted in ensemble.estimators_[:count]]
    return Forest.from_nodes([_nodes(tree, depth) for tree in trees], dtype)


def _nodes(tree: Any, depth: int | None) -> dict[str, NDArray[Any]]:
    left, right = tree.children_left.astype(np.int64), tree.children_right.astype(np.int64)
    kept, level = [], np.zeros(1, dtype=np.int64)
    while len(level):
        kept.append(level)
        if len(kept) - 1 == depth:
            left[level] = right[level] = -1
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()
    order = np.sort(np.concatenate(kept))
    number = np.full(tree.node_count + 1, -1)  # the last entry keeps -1, "no child", as it is
    number[order] = np.arange(len(order))
    return {
        "feature": tree.feature[order],
        "threshold": tree.threshold[order],
        "left": number[left[order]],
        "right": number[right[order]],
        "value": tree.value[order, :, 0],
    }


def _ensemble(name: str, **settings: Any) -> Any:
    return _fitter("ensemble", name, n_jobs=1, **settings)


def _fitter(module: str, name: str, **settings: Any) -> Any:
    try:
        library = importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise missing_dependency("fitting a surrogate", "scikit-learn", "surrogate") from error
    return getattr(library, name)(random_state=0, **settings)
