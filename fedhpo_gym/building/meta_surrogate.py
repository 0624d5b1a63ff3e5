"""Fits the surrogate of a search space of FedHPO-B, and measures it on held-out configurations.

One ensemble of small networks answers for all tasks of the space: a row is a configuration, and a
1 in the column of its task. What it is trained on are normal scores of ranks (`scores_of`), and
quantiles of each task turn scores back into losses. Training is AdamW in NumPy.
`fit_meta_surrogate` returns the arrays that `stored.meta_data.MetaSurrogate` answers from, and
Kendall's tau by task, of cross-validation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats, Singles
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.multi_objective import kendall
from fedhpo_gym.stored.meta_data import KNOTS, LOWEST, STEP, MetaSurrogate, smooth_gate
from fedhpo_gym.stored.surrogate_models import MAX_WEIGHT, WEIGHT_BITS, on_grid

FOLDS: Final = 5
NETWORKS, WIDTHS = 4, (64, 64, 64, 64)
EPOCHS, FEWEST_STEPS, BATCH = 60, 600, 128
RATE, WARM_UP, DECAY, MOMENTS = 0.01, 0.2, 0.1, (0.9, 0.999)
"""The largest step and how much of training leads up to it; decay of weights; and of means."""
IMPORTANCE: Final = (2.0, 1.0, 0.5, 0.5, 0.3, 0.3)
"""Of what is measured, in the error that is minimized: the validation loss first."""


@dataclass(frozen=True)
class FittedSurrogate:
    """What becomes of a search space."""

    arrays: dict[str, NDArray[Any]]  # of `MetaSurrogate`, fitted on all configurations
    tau: list[float]  # by task, Kendall's tau of the validation loss; 0 where there is no order


@validate_call
def fit_meta_surrogate(
    features: NDArray[np.floating], values: NDArray[np.floating], shared: int, seed: int = 0
) -> FittedSurrogate:
    """Fit one model on T tasks with P configurations each, and measure it by cross-validation.

    The tau of a task compares all its configurations with what models say that were fitted without
    them. The first `shared` configurations are the same in all tasks: one is held out of all.

    Args:
        features: (T, P, F) numbers in [0, 1].
        values: (T, P, 6) objectives in the order of `MEASURED`, the worst where training diverged.
        shared: See above.
        seed: Of folds, initial weights, and the order of rows.
    """
    if (
        features.ndim != 3
        or values.shape != (*features.shape[:2], len(IMPORTANCE))
        or not (np.isfinite(features).all() and np.isfinite(values).all() and (values >= 0).all())
        or not FOLDS <= shared <= features.shape[1]
    ):
        raise InvalidArgumentError(
            f"`features` (T, P, F) and `values` (T, P, {len(IMPORTANCE)}) must be finite, the "
            f"latter 0 or more, with {FOLDS} to P `shared` configurations, got {features.shape}, "
            f"{values.shape} and {shared}"
        )
    rows, measured = features.astype(np.float64), values.astype(np.float64)
    folds = _assign_folds(features.shape[1], shared, seed)
    claims = np.empty_like(measured)
    for fold in range(FOLDS):
        inside, outside = folds == fold, folds != fold
        model = MetaSurrogate(_fit_arrays(rows[:, outside], measured[:, outside], seed))
        for task in range(len(rows)):
            claims[task, inside] = model.predict(task, rows[task, inside])
    taus = [kendall(*pair) for pair in zip(measured[..., 0], claims[..., 0], strict=True)]
    return FittedSurrogate(
        _fit_arrays(rows, measured, seed), [0.0 if math.isnan(tau) else tau for tau in taus]
    )


def _assign_folds(count: int, shared: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of each configuration: equal shares of the shared ones and of the others."""
    rng = stream(seed, "meta_surrogate_folds")
    parts = [rng.permutation(np.arange(size) % FOLDS) for size in (shared, count - shared)]
    return np.concatenate(parts)


def _fit_arrays(features: Floats, values: Floats, seed: int) -> dict[str, NDArray[Any]]:
    scores, quantiles = scores_of(values, LOWEST + STEP * np.arange(KNOTS))
    weights, biases = _train_networks(features, scores, stream(seed, "meta_surrogate"))
    width = features.shape[2]
    parameters = {"task_weight": weights[0][:, width:], "weight_0": weights[0][:, :width]}
    parameters |= {f"weight_{layer}": weights[layer] for layer in range(1, len(weights))}
    parameters |= {f"bias_{layer}": bias[:, 0] for layer, bias in enumerate(biases)}
    rounded = {
        name: on_grid(parameter, WEIGHT_BITS, MAX_WEIGHT) for name, parameter in parameters.items()
    }
    arrays = {**rounded, "quantiles": quantiles}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def scores_of(values: Floats, knots: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return (T, P, Q) normal scores of ranks, a tie's in its middle, and (T, Q, knots) quantiles.

    The scores of a normal distribution (Blom, 1958) tell the best and the worst well apart.
    """
    count = values.shape[1]
    normal = NormalDist()
    half_scores = np.array([normal.inv_cdf(half / (2 * count)) for half in range(1, 2 * count)])
    scores = np.empty_like(values)
    quantiles = np.empty((len(values), values.shape[2], len(knots)))
    for task, measured in np.ndindex(*quantiles.shape[:2]):
        distinct, where, ties = np.unique(
            values[task, :, measured], return_inverse=True, return_counts=True
        )
        distinct_scores = half_scores[2 * np.cumsum(ties) - ties - 1]
        scores[task, :, measured] = distinct_scores[where]
        quantiles[task, measured] = np.interp(knots, distinct_scores, distinct)
    return scores, quantiles


def _train_networks(
    features: Floats, scores: Floats, rng: np.random.Generator
) -> tuple[list[Singles], list[Singles]]:
    """Return weights (E, inputs, outputs) and biases (E, 1, outputs) of layers.

    The rows of a task have a 1 in a column of its own after the features.
    """
    tasks, count, width = features.shape
    total = tasks * count
    rows = np.zeros((tasks, count, width + tasks), np.float32)
    rows[..., :width] = 2.0 * features - 1.0
    rows[np.arange(tasks), :, width + np.arange(tasks)] = 1.0
    rows, targets = rows.reshape(total, -1), scores.reshape(total, -1).astype(np.float32)
    sizes = (width, *WIDTHS, targets.shape[1])
    shapes = [(NETWORKS, *pair) for pair in pairwise(sizes)]
    shapes[0] = (NETWORKS, width + tasks, sizes[1])
    shapes += [(NETWORKS, 1, size) for size in sizes[1:]]
    starts = np.cumsum([0, *map(math.prod, shapes)])
    flat, slope = np.zeros((2, starts[-1]), np.float32)
    parts, slopes = (
        [buffer[a:b].reshape(s) for (a, b), s in zip(pairwise(starts), shapes, strict=True)]
        for buffer in (flat, slope)
    )
    layers = len(sizes) - 1
    for weight, inputs in zip(parts[:layers], sizes, strict=False):
        weight[:] = rng.standard_normal(weight.shape, dtype=np.float32) / math.sqrt(inputs)
    steps = max(EPOCHS * math.ceil(total / BATCH), FEWEST_STEPS)
    mean, square = np.zeros_like(flat), np.zeros_like(flat)
    for step, batch_rows in zip(range(1, steps + 1), _draw_batches(total, rng), strict=False):
        _write_slopes(parts, slopes, rows[batch_rows], targets[batch_rows])
        rate = RATE * _schedule_rate(step / steps)
        mean += np.float32(1.0 - MOMENTS[0]) * (slope - mean)
        square += np.float32(1.0 - MOMENTS[1]) * (slope * slope - square)
        size = np.sqrt(square / np.float32(1.0 - MOMENTS[1] ** step)) + np.float32(1e-8)
        flat *= np.float32(1.0 - rate * DECAY)  # (Loshchilov and Hutter, 2019)
        flat -= np.float32(rate / (1.0 - MOMENTS[0] ** step)) * mean / size
    return parts[:layers], parts[layers:]


def _draw_batches(total: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """Yield (E, n) positions without end, an own order for every network."""
    while True:
        orders = rng.permuted(np.tile(np.arange(total), (NETWORKS, 1)), axis=1)
        for start in range(0, total, BATCH):
            yield orders[:, start : start + BATCH]


def _schedule_rate(share: float) -> float:
    """Return the step at a share of training: up along a line, down along a cosine."""
    if share < WARM_UP:
        return share / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (share - WARM_UP) / (1.0 - WARM_UP)))


def _write_slopes(
    parts: list[Singles], slopes: list[Singles], rows: Singles, targets: Singles
) -> None:
    """Write the slopes of the mean squared error on (E, n) rows."""
    layers = len(parts) // 2
    hidden, rises = [rows], []
    for weight, bias in zip(parts[: layers - 1], parts[layers:], strict=False):
        sums = hidden[-1] @ weight + bias
        inverse = 1.0 / np.sqrt(1.0 + sums * sums)
        share = sums * inverse
        rises.append(0.5 * (1.0 + share + share * inverse * inverse))
        hidden.append(smooth_gate(sums))
    delta = hidden[-1] @ parts[layers - 1] + parts[-1] - targets
    delta *= np.array(IMPORTANCE, np.float32) * np.float32(2.0 / targets[0].size)
    for layer in reversed(range(layers)):
        slopes[layer][:] = hidden[layer].swapaxes(1, 2) @ delta
        slopes[layers + layer][:] = delta.sum(axis=1, keepdims=True)
        if layer:
            delta = (delta @ parts[layer].swapaxes(1, 2)) * rises[layer - 1]
