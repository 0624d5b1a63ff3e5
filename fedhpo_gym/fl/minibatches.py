"""Which clients train in a round and on which minibatches: drawn from the seed alone.

Courses that share a seed, a batch size and a round share their minibatches, whatever else they are
configured to do; that is what lets the engine train them as one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym import seeding
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.packing import PerClient


@dataclass(frozen=True, eq=False)
class RoundBatches:
    """The minibatches of some clients in one round.

    Attributes:
        rows: (steps, clients, batch) row indices; 0 where padded.
        sizes: (steps, clients) rows that are not padding.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


def row_weights(sizes: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return (..., width) weights of the rows of minibatches: 1 / size, and 0 where padded."""
    share = (1.0 / np.maximum(sizes, 1)).astype(np.float32)[..., None]
    return np.where(np.arange(width) < sizes[..., None], share, np.float32(0.0))


def client_orders(rounds: Sequence[tuple[int, int]], num_clients: int) -> NDArray[np.int64]:
    """Return (rounds, clients) orders of sampling, by (seed, finished rounds).

    A round with m clients takes the first m: rounds of courses that differ only in the client
    sample rate are nested.
    """
    return np.stack([rng.permutation(num_clients) for rng in seeding.streams("clients", rounds)])


def client_streams(names: Sequence[tuple[int, ...]]) -> list[np.random.Generator]:
    """Return what clients draw their minibatches from, by (seed, finished rounds, client)."""
    return list(seeding.streams("minibatches", names))


def batch_rows(federation: Federation, batch_size: PerClient, few_shapes: bool = False) -> int:
    """Return the rows a minibatch tensor has: no client can fill more than its training split.

    A function of the federation and the batch sizes alone, so that tensor shapes, and with them
    the rounding of every product, do not depend on what else is in a batch of courses.

    Args:
        federation: the federation.
        batch_size: samples per minibatch.
        few_shapes: pad to a power of two, so that more courses train together.
    """
    largest = federation.num_samples[:, 0].max()
    rows = int(min(largest, max(batch_size.base, *(value for _, value in batch_size.own), 1)))
    return int(min(largest, 1 << (rows - 1).bit_length())) if few_shapes else rows


def draw_minibatches(
    streams: Sequence[np.random.Generator],
    rows: Sequence[NDArray[np.int64]],
    batch_size: NDArray[np.int64],
    epochs: NDArray[np.int64],
    width: int,
) -> RoundBatches:
    """Draw the minibatches of clients, of one federation or of several.

    Args:
        streams: what each draws from, see `client_streams`.
        rows: training samples of each.
        batch_size: (clients,) samples per minibatch.
        epochs: (clients,) local epochs.
        width: rows of a minibatch, padding included.
    """
    held = np.array([len(own) for own in rows])
    per_epoch = -(-held // batch_size)
    steps = epochs * per_epoch
    flat = np.zeros((len(rows), int(steps.max()) * width), dtype=np.int64)
    plan = zip(
        streams,
        rows,
        batch_size.tolist(),
        per_epoch.tolist(),
        epochs.tolist(),
        strict=True,
    )
    for column, (rng, own, size, stride, repeats) in enumerate(plan):
        for start in range(0, repeats * stride * width, max(stride * width, 1)):
            if size >= width:  # minibatches are not padded, but perhaps the last: no gaps
                drawn = flat[column, start : start + len(own)]
                drawn[:] = own
                rng.shuffle(drawn)
            else:
                places = np.arange(len(own))
                places += places // size * (width - size) + start
                flat[column, places] = own[rng.permutation(len(own))]
    step = np.arange(steps.max())[:, None]
    sizes = np.minimum(held - step % np.maximum(per_epoch, 1) * batch_size, batch_size)
    sizes[step >= steps] = 0
    laid_out = flat.reshape(len(rows), len(step), width).transpose(1, 0, 2)
    return RoundBatches(laid_out, sizes)
