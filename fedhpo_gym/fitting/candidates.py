"""The models a surrogate is chosen from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import needing
from fedhpo_gym.fitting.data import PreparedRows
from fedhpo_gym.fitting.gaussian import LIKELY_ROWS, POINTS, fit_process
from fedhpo_gym.fitting.network import WIDTHS, train_network
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.curves import CurveModel, CurveRegressor
from fedhpo_gym.surrogates.forest import Forest
from fedhpo_gym.surrogates.products import is_product

FOREST_TREES = (10, 20)
FOREST_DEPTHS = (10, 15, 20)
"""What FedHPO-Bench chooses its random forests from (paper, appendix H.2)."""
COMPACT: Mapping[str, int] = {"n_estimators": 3, "max_leaf_nodes": 600, "max_depth": 13}
"""As large as a surrogate of a table may be, and as quick to answer as a network."""
BATCH, EPOCHS, FEWEST_STEPS = 512, 85, 700
"""Of a network; the last holds on few rows, whatever the epochs."""
BOOSTED_TREES, BOOSTED_DEPTH, BOOSTED_RATE, BOOSTED_SHARE = 80, 5, 0.1, 0.7


@dataclass(frozen=True)
class Candidate:
    """One way to fit a surrogate.

    Attributes:
        name: how the card calls it.
        kind: kind of its regressors, see `surrogates.curves.KINDS`.
        settings: what decides the fit, for the card.
        fit: returns one regressor per variant.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    fit: Callable[[PreparedRows], dict[str, CurveRegressor]]

    def models(self, rows: PreparedRows) -> dict[str, CurveModel]:
        """Return the fitted model of every variant."""
        return {
            variant: CurveModel(regressor, rows.scales, rows.centre, rows.basis, rows.clients)
            for variant, regressor in self.fit(rows).items()
        }


def _random_forests(rows: PreparedRows) -> dict[str, CurveRegressor]:
    """Fit once, read off all variants.

    A tree cut at a depth is the tree grown to that depth, and ten of twenty trees are a forest of
    ten: the trees are independent and a split does not depend on what is below it.
    """
    ensemble = _ensemble(
        "RandomForestRegressor", n_estimators=max(FOREST_TREES), max_depth=max(FOREST_DEPTHS)
    ).fit(rows.inputs, rows.coefficients)
    return {
        forest_variant(count, depth): forest_of(ensemble, count, depth)
        for count in FOREST_TREES
        for depth in FOREST_DEPTHS
    }


def _extra_trees(rows: PreparedRows) -> dict[str, CurveRegressor]:
    ensemble = _ensemble("ExtraTreesRegressor", n_estimators=10, max_depth=20).fit(
        rows.inputs, rows.coefficients
    )
    return {"": forest_of(ensemble)}


def _compact_forest(rows: PreparedRows) -> dict[str, CurveRegressor]:
    ensemble = _ensemble("RandomForestRegressor", **COMPACT)
    return {"": forest_of(ensemble.fit(rows.inputs, rows.coefficients), dtype=np.float16)}


def _boosted_trees(rows: PreparedRows) -> dict[str, CurveRegressor]:
    """Fit trees one after the other, each on a share of what those before left over.

    Stochastic gradient boosting of the squared error (Friedman, 2002), all outputs in one tree. A
    forest is a mean, so its values are the steps times the number of trees.
    """
    rng = stream(0, "boosted_trees")
    left = rows.coefficients.astype(np.float64)
    trees = []
    for _ in range(BOOSTED_TREES):
        chosen = rng.permutation(len(left))[: max(int(BOOSTED_SHARE * len(left)), 1)]
        tree = _fitter("tree", "DecisionTreeRegressor", max_depth=BOOSTED_DEPTH)
        tree.fit(rows.inputs[chosen], left[chosen])
        left -= BOOSTED_RATE * tree.predict(rows.inputs).reshape(left.shape)
        nodes = _nodes(tree.tree_, None)
        trees.append({**nodes, "value": nodes["value"] * (BOOSTED_RATE * BOOSTED_TREES)})
    return {"": Forest.from_nodes(trees, np.float16)}


def _gaussian_process(rows: PreparedRows) -> dict[str, CurveRegressor]:
    """Fit it four ways: seeing products of hyperparameters or not, with seeds alike or not."""
    variants = [("", False)]
    if any(map(is_product, rows.names)):
        variants.append(("products", True))
    return {
        ", ".join(filter(None, (words, alike))): fit_process(
            rows, products=products, seeds_alike=bool(alike)
        )
        for words, products in variants
        for alike in ("", "seeds alike")
    }


def _network(rows: PreparedRows) -> dict[str, CurveRegressor]:
    batch = min(BATCH, len(rows.inputs))
    steps = max(EPOCHS * (len(rows.inputs) // batch), FEWEST_STEPS)
    return {"": train_network(rows, steps=steps, batch=batch)}


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
                "compact_forest",
                "forest",
                {**COMPACT, "stored": "float16"},
                _compact_forest,
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
                "gaussian_process",
                "exact_kernel",
                {
                    "kernel": "Matern 3/2",
                    "points": f"at most {POINTS}",
                    "stretch": f"of high marginal likelihood on at most {LIKELY_ROWS} rows",
                },
                _gaussian_process,
            ),
            Candidate(
                "network",
                "heads",
                {
                    "widths": list(WIDTHS),
                    "optimizer": "Adam, cosine schedule, Huber loss",
                    "epochs": f"{EPOCHS} of batch {BATCH}, at least {FEWEST_STEPS} steps",
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
    with needing("fitting a surrogate", "scikit-learn", "surrogate", "sklearn"):
        library = importlib.import_module(f"sklearn.{module}")
    return getattr(library, name)(random_state=0, **settings)
