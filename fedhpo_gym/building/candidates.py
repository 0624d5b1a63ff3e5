"""The models a surrogate is chosen from.

A `Candidate` fits `PreparedRows` (`building/surrogate_data.py`), and returns one regressor per
variant; `CANDIDATES` names the four that `building/surrogate_fit.py` compares. They are a random
forest as FedHPO-Bench fits it, a smaller one, a Gaussian process (`fit_process`), and a network
with a head per seed (`train_network`). Every regressor predicts the coefficients of a curve, from
which `stored/surrogate_curves.py` computes the curve. Only NumPy is needed, and scikit-learn for
the forests.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.surrogate_data import PreparedRows
from fedhpo_gym.core.arrays import Bools, Floats, Singles
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.surrogate_curves import CurveModel, CurveRegressor
from fedhpo_gym.stored.surrogate_models import (
    MAX_POINT,
    ExactKernel,
    Forest,
    MultiHeadNetwork,
    matern,
)
from fedhpo_gym.stored.surrogate_rows import BATCH, EPOCHS, is_product

LIKELY_ROWS = 300
"""Most rows that the likelihood is computed of: it takes the cube of their number."""
POINTS = 1_000
"""Most rows that the process is conditioned on."""
STEPS = 60
KERNEL_RATE = 0.1
FIRST_STRETCH, FIRST_NOISE = 0.5, 0.03
STRETCHES, NOISES = (0.02, MAX_POINT), (1e-4, 1.0)
ALIKE = 0.06
"""Largest stretch of a seed where seeds are alike: curves of two correlate to 0.99. The likelihood
of few courses likes to explain chance by seeds, and then learns less of one seed for another."""
COUNTS = (EPOCHS, BATCH)
"""Hyperparameters that a model of products sees in these only."""


def fit_process(
    rows: PreparedRows, *, products: bool = False, seeds_alike: bool = False
) -> ExactKernel:
    """Return the posterior mean at a kernel and a noise of high marginal likelihood.

    All coefficients share the kernel, a Matern of smoothness 3/2 with a stretch per input. Each has
    a variance of its own, for which the likelihood is maximised in closed form; coefficients count
    by their share of the variance (Rasmussen and Williams, 2006, chapters 2 and 5).
    """
    order = stream(0, "gaussian_process").permutation(len(rows.inputs))
    targets = rows.coefficients.astype(np.float64)
    inputs = rows.inputs.astype(np.float64)
    likelihood_rows = np.sort(order[:LIKELY_ROWS])
    replaced = COUNTS if products else ()
    is_visible = np.array(
        [products if is_product(n) else n not in replaced for n in rows.names], np.bool_
    )
    most = np.full(len(is_visible), STRETCHES[1])
    if seeds_alike:
        most[-rows.seeds :] = ALIKE
    stretch = np.zeros(len(is_visible))
    stretch[is_visible], noise = likely_kernel(
        inputs[likelihood_rows][:, is_visible], targets[likelihood_rows], most[is_visible]
    )
    point_rows = np.sort(order[:POINTS])
    stretch = stretch.astype(np.float32).astype(np.float64)
    points = (inputs[point_rows] * stretch).astype(np.float32)
    gram = matern(points.astype(np.float64), points.astype(np.float64))
    weights = np.linalg.solve(gram + noise * np.eye(len(points)), targets[point_rows])
    return ExactKernel(
        {
            "stretch": stretch.astype(np.float32),
            "points": points,
            "weights": weights.astype(np.float32),
        }
    )


def likely_kernel(
    inputs: Floats, targets: Floats, most: float | Floats = STRETCHES[1]
) -> tuple[Floats, float]:
    """Return the stretch of every input, and the noise, after some steps up the likelihood.

    Shapes: `inputs` (n, features); `targets` (n, coefficients).
    """
    distances = (inputs[:, None] - inputs) ** 2
    share = (targets**2).sum(axis=0)
    share = share / max(share.sum(), 1e-30)
    used = share > 1e-4  # the others are noise, and there are many
    position = np.log([*np.full(inputs.shape[1], FIRST_STRETCH), FIRST_NOISE])
    features = inputs.shape[1]
    ends = (STRETCHES[0], most)
    low, high = (
        np.log(np.append(np.full(features, s), n)) for s, n in zip(ends, NOISES, strict=True)
    )
    mean, square = np.zeros_like(position), np.zeros_like(position)
    for step in range(1, STEPS + 1):
        slope = likelihood_slope(position, distances, targets[:, used], share[used])
        mean = 0.9 * mean + 0.1 * slope
        square = 0.99 * square + 0.01 * slope**2
        rate = KERNEL_RATE * (1.0 - (step - 1) / STEPS)
        size = np.sqrt(square / (1 - 0.99**step)) + 1e-12
        position = np.clip(position + rate * mean / (1 - 0.9**step) / size, low, high)
    return np.exp(position[:-1]), float(np.exp(position[-1]))


def likelihood_slope(position: Floats, distances: Floats, targets: Floats, share: Floats) -> Floats:
    """Return the slope of the log marginal likelihood, per row and share of the variance.

    Shapes: `distances` (n, n, features); `targets` (n, coefficients); `share` (coefficients,).
    """
    n = len(targets)
    stretches, noise = np.exp(2.0 * position[:-1]), np.exp(position[-1])
    decay = np.exp(-np.sqrt(3.0 * (distances @ stretches)))
    gram = (1.0 - np.log(decay)) * decay
    inverse = np.linalg.inv(gram + noise * np.eye(n))
    solved = inverse @ targets
    variance = np.maximum((targets * solved).sum(axis=0) / n, 1e-30)
    inner = (solved * (share / variance)) @ solved.T - share.sum() * inverse
    # d k / d log stretch = -3 exp(-sqrt(3) r) stretch^2 distance
    by_stretch = -3.0 * stretches * np.einsum("ij,ij,ijf->f", inner, decay, distances)
    return np.append(by_stretch, noise * np.trace(inner)) / (2.0 * n)


WIDTHS = (96, 96, 96)
NETWORK_RATE = 4e-3
MOMENTS = (0.9, 0.99)
CLIP = 1.0
"""Residuals beyond count linearly (Huber): chaotic courses must not bend the whole surface."""
WARM_UP = 50


def train_network(
    rows: PreparedRows, *, steps: int, batch: int, widths: tuple[int, ...] = WIDTHS
) -> MultiHeadNetwork:
    """Return a half-precision network whose curves fit those of rows, not their coefficients.

    Few outliers of a curve are one large coefficient. Heads of seeds are what they share plus their
    own, so that what one seed shows is learned for all.
    """
    rng = stream(0, "surrogate_network")
    basis = rows.basis.reshape(len(rows.basis), -1)
    unit = np.float32(math.sqrt(rows.basis.shape[1]))  # coefficients grow with the knots
    plain, seed = rows.inputs[:, : -rows.seeds], rows.inputs[:, -rows.seeds :]
    parameters = _initial_parameters((plain.shape[1], *widths), rows.seeds, len(basis), rng)
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    order = np.arange(len(plain))
    position = len(plain)
    for step in range(1, steps + 1):
        if position + batch > len(plain):
            rng.shuffle(order)
            position = 0
        batch_rows = order[position : position + batch]
        position += batch
        gradients = _loss_gradients(
            parameters,
            plain[batch_rows],
            seed[batch_rows],
            (rows.curves[batch_rows], rows.known[batch_rows]),
            basis * unit,
        )
        rate = NETWORK_RATE * min(1.0, step / WARM_UP)
        rate *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
        _adam_step(parameters, gradients, moments, rate, step)
    *layers, shared, seed_heads, bias = parameters
    names = [f"{kind}_{i}" for i in range(len(widths)) for kind in ("weight", "bias")]
    stored = dict(zip(names, layers, strict=True))
    stored |= {"heads": (shared + seed_heads) * unit, "head_bias": bias * unit}
    return MultiHeadNetwork({name: value.astype(np.float16) for name, value in stored.items()})


def _initial_parameters(
    sizes: tuple[int, ...], seeds: int, outputs: int, rng: np.random.Generator
) -> list[Singles]:
    parameters: list[Singles] = []
    for inputs, width in pairwise(sizes):
        weight = rng.standard_normal((inputs, width), dtype=np.float32)
        parameters += [weight * np.float32(math.sqrt(2 / inputs)), np.zeros(width, np.float32)]
    head = rng.standard_normal((1, sizes[-1], outputs), dtype=np.float32)
    parameters.append(head * np.float32(0.1 * math.sqrt(2 / sizes[-1])))  # start near the mean
    parameters.append(np.zeros((seeds, sizes[-1], outputs), np.float32))
    parameters.append(np.zeros((seeds, outputs), np.float32))
    return parameters


def _loss_gradients(
    parameters: list[Singles],
    rows: Singles,
    seed: Singles,
    targets: tuple[Singles, Bools],
    basis: Singles,
) -> list[Singles]:
    *layers, shared, seed_heads, bias = parameters
    hidden = [rows]
    for weight, offset in zip(layers[::2], layers[1::2], strict=True):
        hidden.append(np.maximum(hidden[-1] @ weight + offset, 0.0))
    heads = shared + seed_heads
    outputs: Singles = seed @ bias
    rows_by_seed = [np.flatnonzero(column) for column in seed.T]
    for head, seed_rows in zip(heads, rows_by_seed, strict=True):
        outputs[seed_rows] += hidden[-1][seed_rows] @ head
    curves, is_known = targets
    clipped: Singles = np.clip(outputs @ basis - curves, -CLIP, CLIP)
    clipped *= is_known  # what was filled in is no data
    slope: Singles = clipped @ basis.T
    slope /= len(rows)
    of_heads: Singles = np.stack(
        [hidden[-1][seed_rows].T @ slope[seed_rows] for seed_rows in rows_by_seed]
    )
    shared_slope: Singles = of_heads.sum(axis=0, keepdims=True)
    gradients: list[Singles] = [shared_slope, of_heads, seed.T @ slope]
    delta = np.empty_like(hidden[-1])
    for head, seed_rows in zip(heads, rows_by_seed, strict=True):
        delta[seed_rows] = slope[seed_rows] @ head.T
    delta *= hidden[-1] > 0
    for layer in range(len(hidden) - 2, -1, -1):
        gradients = [hidden[layer].T @ delta, delta.sum(axis=0), *gradients]
        if layer:
            delta = (delta @ layers[2 * layer].T) * (hidden[layer] > 0)
    return gradients


def _adam_step(
    parameters: list[Singles],
    gradients: list[Singles],
    moments: list[tuple[Singles, Singles]],
    rate: float,
    step: int,
) -> None:
    """Update in place (Kingma and Ba, 2015)."""
    first, second = MOMENTS
    scale = np.float32(rate / (1 - first**step))
    correction = np.float32(1 / (1 - second**step))
    for parameter, gradient, (mean, square) in zip(parameters, gradients, moments, strict=True):
        mean += np.float32(1 - first) * (gradient - mean)
        square += np.float32(1 - second) * (gradient * gradient - square)
        parameter -= scale * mean / (np.sqrt(square * correction) + np.float32(1e-7))


FOREST_TREES = (10, 20)
FOREST_DEPTHS = (10, 15, 20)
"""What FedHPO-Bench chooses its random forests from (paper, appendix H.2)."""
COMPACT: Mapping[str, int] = {"n_estimators": 3, "max_leaf_nodes": 600, "max_depth": 13}
"""As large as a surrogate of a table may be, and as quick to answer as a network."""
NETWORK_BATCH, NETWORK_EPOCHS, FEWEST_STEPS = 512, 85, 700
"""Of a network; the last holds on few rows, whatever the epochs."""


@dataclass(frozen=True)
class Candidate:
    """One way to fit a surrogate."""

    name: str  # how the card calls it
    kind: str  # kind of its regressors
    settings: Mapping[str, Any]  # what decides the fit, for the card
    fit: Callable[[PreparedRows], dict[str, CurveRegressor]]  # returns one regressor per variant

    def models(self, rows: PreparedRows) -> dict[str, CurveModel]:
        """Return the fitted model of every variant."""
        return {
            variant: CurveModel(regressor, rows.scales, rows.centre, rows.basis, rows.clients)
            for variant, regressor in self.fit(rows).items()
        }


def _fit_random_forests(rows: PreparedRows) -> dict[str, CurveRegressor]:
    """Fit once, read off all variants.

    A tree cut at a depth is the tree grown to that depth, and ten of twenty trees are a forest of
    ten: the trees are independent and a split does not depend on what is below it.
    """
    settings = {"n_estimators": max(FOREST_TREES), "max_depth": max(FOREST_DEPTHS)}
    ensemble = _make_random_forest(**settings)
    ensemble.fit(rows.inputs, rows.coefficients)
    return {
        f"n_estimators={count}, max_depth={depth}": forest_of(ensemble, count, depth)
        for count in FOREST_TREES
        for depth in FOREST_DEPTHS
    }


def _fit_compact_forest(rows: PreparedRows) -> dict[str, CurveRegressor]:
    ensemble = _make_random_forest(**COMPACT)
    return {"": forest_of(ensemble.fit(rows.inputs, rows.coefficients), dtype=np.float16)}


def _fit_gaussian_processes(rows: PreparedRows) -> dict[str, CurveRegressor]:
    """Fit it four ways: seeing products of hyperparameters or not, with seeds alike or not."""
    variants = [("", False)]
    if any(map(is_product, rows.names)):
        variants.append(("products", True))
    return {
        ", ".join(filter(None, (label, alike))): fit_process(
            rows, products=products, seeds_alike=bool(alike)
        )
        for label, products in variants
        for alike in ("", "seeds alike")
    }


def _fit_network(rows: PreparedRows) -> dict[str, CurveRegressor]:
    batch = min(NETWORK_BATCH, len(rows.inputs))
    steps = max(NETWORK_EPOCHS * (len(rows.inputs) // batch), FEWEST_STEPS)
    return {"": train_network(rows, steps=steps, batch=batch)}


CANDIDATES: Mapping[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate(
            "random_forest",
            "forest",
            {"n_estimators": list(FOREST_TREES), "max_depth": list(FOREST_DEPTHS)},
            _fit_random_forests,
        ),
        Candidate(
            "compact_forest", "forest", {**COMPACT, "stored": "float16"}, _fit_compact_forest
        ),
        Candidate(
            "gaussian_process",
            "exact_kernel",
            {
                "kernel": "Matern 3/2",
                "points": f"at most {POINTS}",
                "stretch": f"of high marginal likelihood on at most {LIKELY_ROWS} rows",
            },
            _fit_gaussian_processes,
        ),
        Candidate(
            "network",
            "heads",
            {
                "widths": list(WIDTHS),
                "optimizer": "Adam, cosine schedule, Huber loss",
                "epochs": (
                    f"{NETWORK_EPOCHS} of batch {NETWORK_BATCH}, at least {FEWEST_STEPS} steps"
                ),
                "stored": "float16",
            },
            _fit_network,
        ),
    )
}


def forest_of(
    ensemble: Any,
    count: int | None = None,
    depth: int | None = None,
    dtype: type[np.floating] = np.float32,
) -> Forest:
    """Return the first trees of a fitted scikit-learn ensemble, cut at a depth."""
    trees = [fitted.tree_ for fitted in ensemble.estimators_[:count]]
    return Forest.from_nodes([_forest_nodes(tree, depth) for tree in trees], dtype)


def _forest_nodes(tree: Any, depth: int | None) -> dict[str, NDArray[Any]]:
    left_child, right_child = (
        tree.children_left.astype(np.int64),
        tree.children_right.astype(np.int64),
    )
    levels, level = [], np.zeros(1, dtype=np.int64)
    while len(level):
        levels.append(level)
        if len(levels) - 1 == depth:
            left_child[level] = right_child[level] = -1
        inner = level[left_child[level] >= 0]
        level = np.stack([left_child[inner], right_child[inner]], axis=1).ravel()
    order = np.sort(np.concatenate(levels))
    new_index = np.full(tree.node_count + 1, -1)  # the last entry keeps -1, "no child", as it is
    new_index[order] = np.arange(len(order))
    return {
        "feature": tree.feature[order],
        "threshold": tree.threshold[order],
        "left": new_index[left_child[order]],
        "right": new_index[right_child[order]],
        "value": tree.value[order, :, 0],
    }


def _make_random_forest(**settings: int) -> Any:
    with require_optional("fitting a surrogate", "scikit-learn", "surrogate", "sklearn"):
        from sklearn.ensemble import RandomForestRegressor
    return RandomForestRegressor(random_state=0, **settings)
