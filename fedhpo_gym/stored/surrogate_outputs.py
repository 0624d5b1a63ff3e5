"""What a surrogate's model predicts, and how that becomes the metrics of every client.

A row of outputs holds, in this order, for N clients:

- the natural logarithm of the loss of the federation, per split (3);
- the accuracy of every client, per split (3 N), then its macro-F1 (3 N);
- the share of every client in the loss of the federation, per split (3 N);
- with more than 50 clients, the mean of clients' accuracies weighted by samples, their standard
  deviation and their quantiles at `LEVELS`, per split, then those of macro-F1;
- the natural logarithm of the best round (1).

The loss of the federation is the sample-weighted mean over clients, the number optimisers minimise.
It is modelled by itself because a mean of clients' losses, each predicted in log space, falls short
where a client's loss jumps between nothing and millions.

The outputs of many clients are compressed, which makes clients more alike than they are. What is
predicted of them then says in which order they come; their quantiles say how far they lie apart.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import ENTRIES, METRICS, SPLITS, Entries, sum_in_order

SMALLEST_LOSS = 1e-6
"""Losses below are taken for this one; its logarithm is finite."""
LARGEST_LOSS = 10.0
"""Losses above are taken for this one: scores are cut off there, though other rewards are not. Few
courses reach e^75, and would else decide both the fit and its mean error."""

COMPRESSED_CLIENTS = 50
"""With more clients, the outputs of clients are compressed to a few principal components."""
LEVELS = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 1.0])
"""Of the quantiles over clients, with linear interpolation between clients."""

RATES = ("accuracy", "f1")
MOVES = 8
"""How often clients are moved until their spread and weighted mean are the predicted ones."""
MOST_WIDENED = 4.0
SPREAD_OUTPUTS = len(RATES) * len(SPLITS) * (2 + len(LEVELS))
"""How many outputs hold, by metric and split, weighted mean, spread and quantiles of clients."""
_LOSS, _ACCURACY, _F1 = (METRICS.index(name) for name in ("loss", *RATES))
VALIDATION = SPLITS.index("val")
"""Where a row holds the log loss of the federation on the validation split."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.floating]


def num_outputs(num_clients: int, spread: bool = False) -> int:
    """Return the length of a row of outputs, with or without those of the spread of clients."""
    return len(SPLITS) * (1 + 3 * num_clients) + 1 + (SPREAD_OUTPUTS if spread else 0)


def weights_of(num_samples: NDArray[np.integer]) -> Floats:
    """Return each client's weight in the mean of a split, from (..., clients, splits) samples."""
    totals = np.maximum(num_samples.sum(axis=-2, keepdims=True), 1)
    return np.asarray(num_samples / totals, dtype=np.float64)


def to_outputs(
    metrics: NDArray[np.floating], best_round: NDArray[np.integer], weights: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the (n, outputs) rows that a model learns to predict."""
    n, clients = metrics.shape[:2]
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
            *([_spread_of(metrics, weights)] if clients > COMPRESSED_CLIENTS else []),
            np.log(best_round),
        ]
    ).astype(np.float32)


def _spread_of(metrics: NDArray[np.floating], weights: NDArray[np.floating]) -> Floats:
    """Return (n, `SPREAD_OUTPUTS`) of (n, clients, splits, metrics)."""
    found = np.zeros((len(metrics), len(RATES), len(SPLITS), 2 + len(LEVELS)))
    for split in range(len(SPLITS)):
        own = weights[:, :, split]
        present = np.maximum((own > 0).sum(axis=1), 1)
        last = present[:, None] - 1
        below = (LEVELS * last).astype(np.int64)
        above, way = np.minimum(below + 1, last), LEVELS * last - below
        for which, metric in enumerate((_ACCURACY, _F1)):
            values = metrics[:, :, split, metric].astype(np.float64)
            ordered = np.sort(np.where(own > 0, values, 2.0), axis=1)  # who is absent comes last
            low, high = (np.take_along_axis(ordered, at, axis=1) for at in (below, above))
            found[:, which, split, 0] = (own * values).sum(axis=1)
            away = np.where(own > 0, values - (values.sum(axis=1) / present)[:, None], 0.0)
            found[:, which, split, 1] = np.sqrt((away**2).sum(axis=1) / present)
            found[:, which, split, 2:] = np.minimum(low + way * (high - low), 1.0)
    return found.reshape(len(metrics), -1)


def to_metrics(
    outputs: NDArray[np.floating], weights: NDArray[np.floating], reads: Entries = ENTRIES
) -> NDArray[np.float32]:
    """Return (n, clients, splits, metrics) in their ranges, of (n, outputs)."""
    n, (seeds, clients, splits) = len(outputs), weights.shape
    end = splits * (1 + 3 * clients)
    middle = outputs[:, splits:end].reshape(n // seeds, seeds, 3, splits, clients)
    spread = outputs[:, end:-1].reshape(n // seeds, seeds, len(RATES), splits, -1)
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
    metrics = np.full((n // seeds, seeds, clients, splits, len(METRICS)), np.nan, dtype=np.float32)
    by_split = metrics.swapaxes(2, 3)
    by_split[..., _LOSS] = share
    which, where = _rates_of(reads)
    rates = np.minimum(np.maximum(middle[:, :, which, where], 0.0), 1.0)
    if spread.shape[-1]:
        spread = np.clip(spread[:, :, which, where], 0.0, 1.0)
        rates = _spread_out(rates, spread, weights[:, where])
    metrics[..., where, _ACCURACY + which] = rates.swapaxes(2, 3)
    return metrics.reshape(n, clients, splits, -1)


@functools.cache
def _rates_of(reads: Entries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of `RATES` are read, and of which split."""
    needed = [(i, j) for i, m in enumerate(RATES) for j, s in enumerate(SPLITS) if (s, m) in reads]
    which, where = np.array(needed, dtype=np.int64).reshape(-1, 2).T
    return which, where


def _spread_out(rates: Numbers, spread: Numbers, weights: Numbers) -> Floats:
    """Return rates of clients in their order, spread as was predicted.

    They are put at their quantiles, then moved: away from their mean until they have the standard
    deviation, and all together until they have the weighted mean.

    Shapes: `rates` (n, seeds, rates, clients); `spread` (n, seeds, rates, 2 + levels); `weights`
    (seeds, rates, clients).
    """
    present = weights > 0
    last = np.maximum(present.sum(axis=-1, keepdims=True) - 1, 1)
    share = np.minimum(np.arange(weights.shape[-1]) / last, 1.0)
    below = np.minimum(np.searchsorted(LEVELS, share, side="right"), len(LEVELS) - 1) - 1
    way = (share - LEVELS[below]) / (LEVELS[below + 1] - LEVELS[below])
    quantiles = np.maximum.accumulate(spread[..., 2:], axis=-1)
    low, high = (
        np.take_along_axis(quantiles, np.broadcast_to(at, rates.shape), axis=-1)
        for at in (below, below + 1)
    )
    order = np.argsort(np.where(present, rates, 2.0), axis=-1, kind="stable")
    found = np.empty(rates.shape)
    np.put_along_axis(found, order, low + way * (high - low), axis=-1)
    for _ in range(MOVES):
        found = _moved(_widened(found, spread[..., 1], present), spread[..., 0], weights)
    return found


def _widened(rates: Floats, wanted: Numbers, present: NDArray[np.bool_]) -> Floats:
    """Return rates whose standard deviation over the clients there is nearer to another."""
    there = present.astype(np.float64)
    count = np.maximum(sum_in_order(there, axis=-1), 1.0)
    mean = sum_in_order(there * rates, axis=-1) / count
    away = rates - mean[..., None]
    now = np.sqrt(sum_in_order(there * away**2, axis=-1) / count)
    factor = np.minimum(np.divide(wanted, now, out=np.ones_like(now), where=now > 0), MOST_WIDENED)
    return np.asarray(np.clip(mean[..., None] + factor[..., None] * away, 0.0, 1.0))


def _moved(rates: Floats, wanted: Numbers, weights: Numbers) -> Floats:
    """Return rates whose weighted mean is nearer to another; those at 0 and 1 stay."""
    missing = wanted - sum_in_order(weights * rates, axis=-1)
    room = np.where(weights > 0, rates * (1.0 - rates), 0.0)
    total = sum_in_order(weights * room, axis=-1)
    step = np.where(total > 0, missing, 0.0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.clip(rates + step[..., None] * room, 0.0, 1.0))


def objectives(outputs: NDArray[np.floating], weights: NDArray[np.floating]) -> Floats:
    """Return (n, 2): validation accuracy and log validation loss of the federation."""
    _, clients, splits = weights.shape
    if outputs.shape[1] > num_outputs(clients):
        mean = np.clip(
            outputs[:, splits * (1 + 3 * clients) + VALIDATION * (2 + len(LEVELS))], 0, 1
        )
    else:
        start = splits + VALIDATION * clients
        accuracy = np.clip(outputs[:, start : start + clients], 0.0, 1.0)
        mean = (accuracy * weights[:, :, VALIDATION]).sum(axis=1)
    return np.column_stack([mean, outputs[:, VALIDATION]]).astype(np.float64)
