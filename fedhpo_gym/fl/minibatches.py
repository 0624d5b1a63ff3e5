"""Which clients train in a round and on which minibatches: drawn from the seed alone.

Courses that share a seed and a batch size share their minibatches, whatever else they are
configured to do; that is what lets the engine train them as one matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.packing import PerClient
from fedhpo_gym.seeding import stream


@dataclass(frozen=True, eq=False)
class RoundBatches:
    """The minibatches of some clients in one round.

    Attributes:
        rows: (steps, clients, batch) row indices into the federation; 0 where padded.
        weights: (steps, clients, batch) float32, 1 / minibatch size; 0 where padded.
        sizes: (steps, clients) rows that are not padding.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    sizes: NDArray[np.int64]


def client_order(seed: int, round_index: int, num_clients: int) -> NDArray[np.int64]:
    """Return the order in which clients are sampled; a round with m clients takes the first m.

    Rounds of courses that differ only in the client sample rate are thus nested.
    """
    return stream(seed, "clients", round_index).permutation(num_clients)


def steps_per_epoch(num_samples: int, batch_size: int) -> int:
    """Return the number of minibatches of one local epoch; the last may be smaller."""
    return math.ceil(num_samples / batch_size)


def batch_rows(federation: Federation, batch_size: PerClient) -> int:
    """Return the rows a minibatch tensor needs: no client can fill more than its training split.

    A function of the federation and the batch sizes alone, so that tensor shapes, and with them
    the rounding of every product, do not depend on what else is in a batch of courses.
    """
    largest = federation.num_samples[:, 0].max()
    return int(min(largest, max(batch_size.base, *(value for _, value in batch_size.own), 1)))


def draw_round(
    federation: Federation,
    round_index: int,
    clients: NDArray[np.int64],
    batch_size: PerClient,
    num_epochs: int,
) -> RoundBatches:
    """Draw the minibatches of `num_epochs` local epochs for some clients of one round.

    Every client has its own stream and draws epoch after epoch, so the result for one client does
    not depend on which others are asked for nor on how many epochs follow.
    """
    width = batch_rows(federation, batch_size)
    of = [_client_sizes(federation, int(client), batch_size) for client in clients]
    steps = num_epochs * max(len(sizes) for sizes in of)
    rows = np.zeros((steps, len(clients), width), dtype=np.int64)
    weights = np.zeros((steps, len(clients), width), dtype=np.float32)
    sizes = np.zeros((steps, len(clients)), dtype=np.int64)
    for column, client in enumerate(clients):
        own = federation.clients[client][0]
        rng = stream(federation.seed, "minibatches", round_index, int(client))
        per_epoch = len(of[column])
        full = np.zeros((per_epoch, width), dtype=np.int64)
        mask = np.arange(width) < of[column][:, None]
        weight = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        for epoch in range(num_epochs):
            full[mask] = own[rng.permutation(len(own))]
            span = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            rows[span, column] = full
            weights[span, column] = weight
            sizes[span, column] = of[column]
    return RoundBatches(rows, weights, sizes)


def _client_sizes(federation: Federation, client: int, batch_size: PerClient) -> NDArray[np.int64]:
    """Return the sizes of a client's minibatches: all full but perhaps the last."""
    n, size = int(federation.num_samples[client, 0]), int(batch_size.of(client))
    sizes = np.full(steps_per_epoch(n, size), min(size, n), dtype=np.int64)
    if len(sizes):
        sizes[-1] = n - size * (len(sizes) - 1)
    return sizes
