"""Which (course, client) pairs train in a round, and in which portions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.draws import Drawers, Names
from fedhpo_gym.fl.minibatches import batch_rows, client_orders, poisson_clients
from fedhpo_gym.fl.packing import Needs, PerClient
from fedhpo_gym.fl.prepared import PreparedFederation

MAX_KNOWN = 16
"""Rounds whose items are remembered: courses alone often sample the same clients again."""


@dataclass(frozen=True, eq=False)
class Items:
    """(course, client) pairs, by width, and those of one width with most local steps first.

    Attributes:
        course: (items,) index of the course in its group.
        client: (items,) index of the client.
        batch_key: (items,) index of the course's batch key.
        samples: (items,) training samples of the client.
        batch_size: (items,) samples per minibatch.
        width: (items,) rows of a minibatch, padding included; see `batch_rows`.
        epochs: (items,) local epochs.
        steps: (items,) minibatches, each a local step.
        weight: (items,) share of the client's samples among the course's sampled clients.
        num_sampled: (items,) clients the course samples.
    """

    course: NDArray[np.int64]
    client: NDArray[np.int64]
    batch_key: NDArray[np.int64]
    samples: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    width: NDArray[np.int64]
    epochs: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float32]
    num_sampled: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.course)

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
        batch_key: (courses,) index of each course's batch key.
        num_sampled: (courses,) clients each course samples.
        samples: (clients,) training samples.
        rows: (courses, clients) rows that a client trains on in a round; where the model takes the
            step of all items together, those that fill minibatches up count, too.
        steps: (courses, clients) local steps.
    """

    def __init__(
        self,
        needed: Sequence[Needs],
        finished: Sequence[int],
        prepared: PreparedFederation,
        poisson: bool = False,
    ) -> None:
        """Lay out what does not change from round to round.

        Args:
            needed: what each course of the group needs.
            finished: rounds that each has behind it.
            prepared: what they all train on.
            poisson: as in `Algorithm`.
        """
        self._poisson = poisson
        self._seed, self._num_clients = prepared.federation.seed, prepared.num_clients
        keys = [(one.batch_size, own) for one, own in zip(needed, finished, strict=True)]
        place_of = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self._finished = [own for _, own in place_of]
        self.batch_key = np.array([place_of[key] for key in keys])
        self.num_sampled = np.array([one.num_sampled for one in needed])
        self.samples = prepared.num_samples
        self._epochs = _table([one.num_epochs for one in needed], self._num_clients)
        self._batch_size = _table([one.batch_size for one in needed], self._num_clients)
        self._width = np.array([batch_rows(prepared.federation, one.batch_size) for one in needed])
        self._everybody = bool((self.num_sampled >= self._num_clients).all())
        self._server = Drawers(self.batch_key, np.full_like(self.batch_key, -1))
        self._known: dict[bytes, Items] = {}
        self.steps = self._epochs * -(-self.samples // self._batch_size)
        padded = self.steps * self._width[:, None]
        self.rows = padded if prepared.model.together else self._epochs * self.samples

    def items(self, elapsed: int) -> Items:
        """Return the items of a round, `elapsed` rounds after the group was made.

        The same clients give the same object, so that what follows from it is laid out once.
        """
        sampled = self.sampled(elapsed)
        key = sampled.tobytes()
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._items(sampled)
        return self._known[key]

    def _items(self, sampled: NDArray[np.bool_]) -> Items:
        """Return the items of (courses, clients) that train."""
        course, client = np.nonzero(sampled)
        items = self.items_of(course, client, self.batch_key[course])
        return items.take(np.lexsort((-items.steps, items.width)))

    def items_of(
        self, course: NDArray[np.int64], client: NDArray[np.int64], batch_key: NDArray[np.int64]
    ) -> Items:
        """Return the items of some (course, client) pairs, in this order."""
        size = self.samples[client]
        total = np.bincount(course, size, minlength=len(self.batch_key))
        return Items(
            course,
            client,
            batch_key,
            size,
            self._batch_size[course, client],
            self._width[course],
            self._epochs[course, client],
            self.steps[course, client],
            (size / np.maximum(total, 1)[course]).astype(np.float32),
            self.num_sampled[course],
        )

    def names(self, items: Items | None, elapsed: int) -> Names:
        """Return whom random numbers of a round are drawn for; None for the courses' server."""
        drawers = self._server if items is None else items.drawers
        return Names(self._seed, [finished + elapsed for finished in self._finished], drawers)

    def sampled(self, elapsed: int) -> NDArray[np.bool_]:
        """Return (courses, clients): who trains in a round, see `items`."""
        shape = len(self.batch_key), self._num_clients
        if self._everybody:
            return np.ones(shape, dtype=np.bool_)
        rounds = [(self._seed, finished + elapsed) for finished in self._finished]
        sampled = np.zeros(shape, dtype=np.bool_)
        orders = None if self._poisson else client_orders(rounds, self._num_clients)
        for own, key, count in zip(sampled, self.batch_key, self.num_sampled, strict=True):
            if orders is None:
                own[poisson_clients(rounds[key], int(count), self._num_clients)] = True
            else:
                own[orders[key, :count]] = True
        return sampled


def split_items(items: Items, item_bytes: int, max_bytes: int) -> Iterator[Items]:
    """Yield the items in portions of whole batch keys; of one that is too large, of whole clients.

    A portion holds at least one client of a batch key, and else at most `max_bytes` of local
    parameters. How a batch key is split does not depend on the others.
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
    """Return (courses, clients) settings."""
    found = np.empty((len(settings), num_clients), dtype=np.int64)
    for row, setting in enumerate(settings):
        found[row] = int(setting.base)
        for client, value in setting.own:
            found[row, client] = int(value)
    return found
