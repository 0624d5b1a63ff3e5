"""Which (block, client) pairs train in a round, and in which portions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.minibatches import client_order, steps_per_epoch
from fedhpo_gym.fl.packing import Group


@dataclass(frozen=True, eq=False)
class Items:
    """(block, client) pairs, those with most local steps first.

    Attributes:
        block: (items,) index of the block.
        client: (items,) index of the client.
        epochs: (items,) local epochs.
        steps: (items,) local steps.
        weight: (items,) share of the client's samples among the block's sampled clients.
        num_sampled: (items,) clients the block samples.
    """

    block: NDArray[np.int64]
    client: NDArray[np.int64]
    epochs: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float32]
    num_sampled: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.block)

    def take(self, index: NDArray[np.intp]) -> Items:
        """Return some of the items."""
        return Items(
            self.block[index],
            self.client[index],
            self.epochs[index],
            self.steps[index],
            self.weight[index],
            self.num_sampled[index],
        )


def sample_items(group: Group, federation: Federation, round_index: int) -> Items:
    """Draw the clients of a round."""
    order = client_order(federation.seed, round_index, federation.num_clients)
    sizes = federation.num_samples[:, 0]
    rows = []
    for index, block in enumerate(group.blocks):
        sampled = np.sort(order[: block.num_sampled])
        total = max(sizes[sampled].sum(), 1)
        for client in sampled:
            epochs = int(block.num_epochs.of(client))
            per_epoch = steps_per_epoch(int(sizes[client]), int(group.batch_size.of(client)))
            weight = sizes[client] / total
            rows.append((index, client, epochs, epochs * per_epoch, weight, len(sampled)))
    blocks, clients, epochs_of, steps, weights, counts = (
        np.array(x) for x in zip(*rows, strict=True)
    )
    items = Items(blocks, clients, epochs_of, steps, weights.astype(np.float32), counts)
    return items.take(np.argsort(-steps, kind="stable"))


def split_items(items: Items, item_bytes: int, max_bytes: int) -> Iterator[Items]:
    """Yield the items in portions of whole clients, clients in ascending order.

    A portion holds at least one client, and else at most `max_bytes` of local parameters.
    """
    limit = max(max_bytes // max(item_bytes, 1), 1)
    if len(items) <= limit:
        yield items
        return
    clients, counts = np.unique(items.client, return_counts=True)
    first, used = 0, 0
    for position, count in enumerate(counts):
        if used and used + count > limit:
            yield items.take(np.flatnonzero(np.isin(items.client, clients[first:position])))
            first, used = position, 0
        used += int(count)
    yield items.take(np.flatnonzero(np.isin(items.client, clients[first:])))
