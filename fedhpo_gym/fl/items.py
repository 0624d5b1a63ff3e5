"""Which (block, client) pairs train in a round, and in which portions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.draws import Drawers, Names
from fedhpo_gym.fl.minibatches import batch_rows, client_orders, poisson_clients, taken_steps
from fedhpo_gym.fl.packing import Group, PerClient
from fedhpo_gym.fl.stack import Stack

MAX_KNOWN = 16
"""Rounds whose items are remembered: courses alone often sample the same clients again."""


@dataclass(frozen=True, eq=False)
class Items:
    """(block, client) pairs, by width, and those of one width with most local steps first.

    Attributes:
        block: (items,) index of the block.
        client: (items,) index of the client.
        batch_key: (items,) index of the block's batch_key.
        federation: (items,) index of the federation in the stack.
        samples: (items,) training samples of the client.
        batch_size: (items,) samples per minibatch.
        width: (items,) rows of a minibatch, padding included; see `batch_rows`.
        epochs: (items,) local epochs.
        steps: (items,) minibatches.
        taken: (items,) local steps: minibatches that are not too small.
        weight: (items,) share of the client's samples among the block's sampled clients.
        num_sampled: (items,) clients the block samples.
    """

    block: NDArray[np.int64]
    client: NDArray[np.int64]
    batch_key: NDArray[np.int64]
    federation: NDArray[np.int64]
    samples: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    width: NDArray[np.int64]
    epochs: NDArray[np.int64]
    steps: NDArray[np.int64]
    taken: NDArray[np.int64]
    weight: NDArray[np.float32]
    num_sampled: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.block)

    def take(self, index: NDArray[np.intp] | slice) -> Items:
        """Return some of the items."""
        return Items(*(getattr(self, name)[index] for name in _FIELDS))

    @cached_property
    def counted_equally(self) -> Items:
        """The same with weights that count everybody alike, of as many as are sampled."""
        return replace(self, weight=(1.0 / self.num_sampled).astype(np.float32))

    @cached_property
    def drawers(self) -> Drawers:
        """Whom random numbers are drawn for."""
        return Drawers(self.batch_key, self.client)


_FIELDS = tuple(field.name for field in fields(Items))


class Roster:
    """Who trains in the rounds of a group.

    Attributes:
        batch_key: (blocks,) index of each block's batch_key in the group.
        federation: (blocks,) index of each block's federation in the stack.
        num_sampled: (blocks,) clients each block samples.
        samples: (blocks, clients) training samples.
        rows: (blocks, clients) rows that a client trains on in a round; where the model takes the
            step of all items together, those that fill minibatches up count, too.
        taken: (blocks, clients) local steps.
    """

    def __init__(self, group: Group, stack: Stack, poisson: bool = False) -> None:
        """Lay out what does not change from round to round; `poisson` as in `Algorithm`."""
        self._poisson = poisson
        needed = [block.needs for block in group.blocks]
        place_of = {batch_key: index for index, batch_key in enumerate(group.batch_keys)}
        federation_of = {seed: index for index, seed in enumerate(group.seeds)}
        self._batch_keys = [
            (stack.federations[federation_of[batch_key.seed]].seed, batch_key.round)
            for batch_key in group.batch_keys
        ]
        self._num_clients = stack.num_clients
        self.batch_key = np.array([place_of[block.batch_key] for block in group.blocks])
        self.federation = np.array([federation_of[one.seed] for one in needed])
        self.num_sampled = np.array([one.num_sampled for one in needed])
        self.samples = stack.num_samples[self.federation]
        self._epochs = _table([one.num_epochs for one in needed], stack.num_clients)
        self._batch_size = _table([one.batch_size for one in needed], stack.num_clients)
        # Padded rows cost little where the courses of a block share them.
        few = stack.model.slots > 1
        self._width = np.array(
            [
                batch_rows(stack.federations[federation_of[one.seed]], one.batch_size, few)
                for one in needed
            ]
        )
        self._everybody = bool((self.num_sampled >= stack.num_clients).all())
        self._server = Drawers(self.batch_key, np.full_like(self.batch_key, -1))
        self._known: dict[bytes, Items] = {}
        self._steps = self._epochs * -(-self.samples // self._batch_size)
        self.taken = taken_steps(self.samples, self._batch_size, self._epochs, stack.model.min_rows)
        padded = self._steps * self._width[:, None]
        self.rows = padded if stack.model.together else self._epochs * self.samples

    def items(self, elapsed: int) -> Items:
        """Return the items of a round, `elapsed` rounds after the blocks were packed.

        The same clients give the same object, so that what follows from it is laid out once.
        """
        sampled = self._sampled(elapsed)
        key = sampled.tobytes()
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._items(sampled)
        return self._known[key]

    def _items(self, sampled: NDArray[np.bool_]) -> Items:
        """Return the items of (blocks, clients) that train."""
        block, client = np.nonzero(sampled)
        items = self.items_of(block, client, self.batch_key[block])
        return items.take(np.lexsort((-items.steps, items.width)))

    def items_of(
        self, block: NDArray[np.int64], client: NDArray[np.int64], batch_key: NDArray[np.int64]
    ) -> Items:
        """Return the items of some (block, client) pairs, in this order."""
        size = self.samples[block, client]
        total = np.bincount(block, size, minlength=len(self.batch_key))
        return Items(
            block,
            client,
            batch_key,
            self.federation[block],
            size,
            self._batch_size[block, client],
            self._width[block],
            self._epochs[block, client],
            self._steps[block, client],
            self.taken[block, client],
            (size / np.maximum(total, 1)[block]).astype(np.float32),
            self.num_sampled[block],
        )

    def names(self, items: Items | None, elapsed: int) -> Names:
        """Return whom random numbers of a round are drawn for; None for the blocks' server."""
        batch_keys = [(seed, finished + elapsed) for seed, finished in self._batch_keys]
        return Names(batch_keys, self._server if items is None else items.drawers)

    def _sampled(self, elapsed: int) -> NDArray[np.bool_]:
        """Draw the clients: (blocks, clients)."""
        if self._everybody:
            return np.ones((len(self.batch_key), self._num_clients), dtype=np.bool_)
        rounds = [(seed, finished + elapsed) for seed, finished in self._batch_keys]
        sampled = np.zeros((len(self.batch_key), self._num_clients), dtype=np.bool_)
        if self._poisson:
            for own, key, count in zip(sampled, self.batch_key, self.num_sampled, strict=True):
                own[poisson_clients(rounds[key], int(count), self._num_clients)] = True
            return sampled
        orders = client_orders(rounds, self._num_clients)
        for block, (key, count) in enumerate(zip(self.batch_key, self.num_sampled, strict=True)):
            sampled[block, orders[key, :count]] = True
        return sampled


def split_items(items: Items, item_bytes: int, max_bytes: int) -> Iterator[Items]:
    """Yield the items in portions of whole batch_keys; of one that is too large, of whole clients.

    A portion holds at least one client of a batch_key, and else at most `max_bytes` of local
    parameters. How a batch_key is split does not depend on the others.
    """
    limit = max(max_bytes // max(item_bytes, 1), 1)
    for part in _portions(items, items.batch_key, limit):
        yield from _portions(part, part.client, limit)


def _portions(items: Items, key: NDArray[np.int64], limit: int) -> Iterator[Items]:
    """Yield at most `limit` items at a time, if possible, never parting those of equal key."""
    if len(items) <= limit:
        if len(items):
            yield items
        return
    keys, counts = np.unique(key, return_counts=True)
    first, used = 0, 0
    for position, count in enumerate(counts.tolist()):
        if used and used + count > limit:
            yield items.take(np.flatnonzero(np.isin(key, keys[first:position])))
            first, used = position, 0
        used += count
    yield items.take(np.flatnonzero(np.isin(key, keys[first:])))


def _table(settings: Sequence[PerClient], num_clients: int) -> NDArray[np.int64]:
    """Return (blocks, clients) settings."""
    found = np.empty((len(settings), num_clients), dtype=np.int64)
    for row, setting in enumerate(settings):
        found[row] = int(setting.base)
        for client, value in setting.own:
            found[row, client] = int(value)
    return found
