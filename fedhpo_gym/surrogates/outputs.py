"""What a surrogate's model predicts, and how that becomes the metrics of every client.

A row of outputs holds, in this order, for N clients:

- the natural logarithm of the loss of the federation, per split (3);
- the accuracy of every client, per split (3 N), then its macro-F1 (3 N);
- the share of every client in the loss of the federation, per split (3 N);
- the natural logarithm of the best round (1).

The loss of the federation is the sample-weighted mean over clients, the number optimisers minimise.
It is modelled by itself because a mean of clients' losses, each predicted in log space, falls short
where a client's loss jumps between nothing and millions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import METRICS, SPLITS, sum_in_order

SMALLEST_LOSS = 1e-6
"""Losses below are taken for this one; its logarithm is finite."""
LARGEST_LOSS = 10.0
"""Losses above are taken for this one: scores are cut off there, though other rewards are not. Few
courses reach e^75, and would else decide both the fit and its mean error."""

COMPRESSED_CLIENTS = 50
"""With more clients, the outputs of clients are compressed to a few principal components."""

_LOSS, _ACCURACY, _F1 = (METRICS.index(name) for name in ("loss", "accuracy", "f1"))
VALIDATION = SPLITS.index("val")
"""Where a row holds the log loss of the federation on the validation split."""


def num_outputs(num_clients: int) -> int:
    """Return the length of a row of outputs."""
    return len(SPLITS) * (1 + 3 * num_clients) + 1


def client_outputs() -> slice:
    """Return where a row holds the outputs of clients, between those of the federation."""
    return slice(len(SPLITS), -1)


def weights_of(num_samples: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return each client's weight in the mean of a split, from (..., clients, splits) samples."""
    totals = np.maximum(num_samples.sum(axis=-2, keepdims=True), 1)
    return np.asarray(num_samples / totals, dtype=np.float64)


def to_outputs(
    metrics: NDArray[np.floating], best_round: NDArray[np.integer], weights: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the (n, outputs) rows that a model learns to predict.

    Args:
        metrics: (n, clients, splits, metrics).
        best_round: (n,) rounds, 1 or more.
        weights: (n, clients, splits), see `weights_of`.
    """
    n = len(metrics)
    # What a client without samples in a split reports there means nothing and may be NaN.
    metrics = np.where(weights[..., None] > 0, metrics, 0.0)
    losses = metrics[..., _LOSS] * weights
    total = losses.sum(axis=1)
    share = losses / np.maximum(total, SMALLEST_LOSS)[:, None]
    return np.column_stack(
        [
            np.log(np.clip(total, SMALLEST_LOSS, LARGEST_LOSS)),
            metrics[..., _ACCURACY].swapaxes(1, 2).reshape(n, -1),
            metrics[..., _F1].swapaxes(1, 2).reshape(n, -1),
            share.swapaxes(1, 2).reshape(n, -1),
            np.log(best_round),
        ]
    ).astype(np.float32)


def to_metrics(
    outputs: NDArray[np.floating], weights: NDArray[np.floating], rounds: NDArray[np.integer]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return what rows of outputs mean, with every number in its range.

    Args:
        outputs: (n, outputs).
        weights: (S, clients, splits), see `weights_of`: rows take turns with them.
        rounds: (n,) the rounds that were asked for; no best round lies beyond.

    Returns:
        (n, clients, splits, metrics) metrics and (n,) best rounds.
    """
    n, (seeds, clients, splits) = len(outputs), weights.shape
    middle = outputs[:, splits:-1].reshape(n // seeds, seeds, 3, splits, clients)
    weights = np.ascontiguousarray(weights.swapaxes(1, 2))
    present = weights > 0
    share = np.maximum(middle[:, :, 2], 0.0)
    if not present.all():
        share = np.where(present, share, 0.0)
    sums = sum_in_order(share, axis=-1)[..., None]
    if (some := sums > 0).all():
        share = np.divide(share, sums, dtype=weights.dtype)
    else:
        share = np.where(some, share, weights) / np.where(some, sums, 1.0)
    # A client without samples in a split has no loss there: its weight and its share are 0.
    share /= np.where(present, weights, 1.0)
    share *= np.exp(outputs[:, :splits, None]).reshape(n // seeds, seeds, splits, 1)
    metrics = np.empty((n // seeds, seeds, clients, splits, len(METRICS)), dtype=np.float32)
    by_split = metrics.swapaxes(2, 3)
    by_split[..., _LOSS] = share
    rates = np.maximum(middle[:, :, :2], 0.0)
    np.minimum(rates, 1.0, out=rates)
    by_split[..., _ACCURACY], by_split[..., _F1] = rates[:, :, 0], rates[:, :, 1]
    best = np.rint(np.exp(outputs[:, -1])).astype(np.int64)
    return metrics.reshape(n, clients, splits, -1), np.clip(best, 1, rounds)


def objectives(outputs: NDArray[np.floating], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return (n, 2): validation accuracy and log validation loss of the federation.

    Args:
        outputs: (n, outputs).
        weights: (n, clients, splits), see `weights_of`.
    """
    _, clients, splits = weights.shape
    start = splits + VALIDATION * clients
    accuracy = np.clip(outputs[:, start : start + clients], 0.0, 1.0)
    mean = (accuracy * weights[:, :, VALIDATION]).sum(axis=1)
    return np.column_stack([mean, outputs[:, VALIDATION]]).astype(np.float64)
