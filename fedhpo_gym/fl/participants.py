"""Sample the clients of each round, and lay out their minibatches.

A `Group` owns a `ClientSampler`, which returns a `ClientBatch` of items for each round; an item is
a (course, client) pair. Every random number comes from a stream that is named by seed, finished
rounds and client. Cohorts and minibatches therefore depend neither on the batch nor on earlier
draws, and courses of the same seed share them. Preparing streams is slow, so that many are prepared
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core import seeding
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import BatchKey, PerClient

MAX_PREPARED = 256
"""Streams that are prepared together; they cost as much as fifteen that are made one by one."""
MIN_PREPARED = 32
"""Fewest used streams for which preparing them ahead pays off; a request for as many prepares them
together anyway."""
_MINIBATCHES = "minibatches"


def row_weights(sizes: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return (..., width) weights of the rows of minibatches: 1 / size, and 0 where padded."""
    share = (1.0 / np.maximum(sizes, 1)).astype(np.float32)[..., None]
    return np.where(np.arange(width) < sizes[..., None], share, np.float32(0.0))


def client_orders(rounds: Sequence[tuple[int, int]], num_clients: int) -> list[NDArray[np.int64]]:
    """Return a permutation of clients for each (seed, finished rounds); a cohort is its start."""
    return [rng.permutation(num_clients) for rng in seeding.streams("clients", rounds)]


def poisson_clients(name: tuple[int, int], expected: int, num_clients: int) -> NDArray[np.int64]:
    """Return the cohort of (seed, finished rounds) if clients are sampled independently."""
    draws = seeding.stream(name[0], "poisson", name[1]).random(num_clients)
    return np.flatnonzero(draws < expected / num_clients)


def client_streams(names: Sequence[tuple[int, ...]]) -> list[np.random.Generator]:
    """Return the generators of minibatches, by (seed, finished rounds, client)."""
    return list(seeding.streams(_MINIBATCHES, names))


class ClientStreams:
    """The same as `client_streams`, faster for few clients round after round."""

    def __init__(self, num_clients: int) -> None:
        self._clients = np.arange(num_clients)
        self._ahead = MAX_PREPARED // num_clients
        self._words: dict[tuple[int, int], NDArray[np.uint64]] = {}
        self._asked = False

    def __call__(self, names: Sequence[tuple[int, ...]]) -> list[np.random.Generator]:
        """Return the generators of minibatches, by (seed, finished rounds, client)."""
        # Courses that are regrouped before every round make one call only: nothing pays off.
        was_called, self._asked = self._asked, True
        if not was_called or not self._worth(names):
            return client_streams(names)
        return [
            seeding.generator_from_words(self._of(seed, finished)[client])
            for seed, finished, client in names
        ]

    def _worth(self, names: Sequence[tuple[int, ...]]) -> bool:
        """Return whether preparing the streams of all clients of each seed and round pays off."""
        if len(names) >= MIN_PREPARED:
            return False
        rounds = {(seed, finished) for seed, finished, _ in names}
        used = self._ahead * len(names)
        return used >= MIN_PREPARED * len(rounds) and all(
            seed < seeding.WORD_END for seed, _ in rounds
        )

    def _of(self, seed: int, finished: int) -> NDArray[np.uint64]:
        """Return the (clients, 4) first words of the streams of a round."""
        if (seed, finished) not in self._words:
            if len(self._words) >= MIN_PREPARED * self._ahead:
                self._words.clear()
            rounds = np.arange(finished, finished + self._ahead)
            keys = np.empty((self._ahead, len(self._clients), 3), dtype=np.uint32)
            keys[..., 0], keys[..., 1], keys[..., 2] = seed, rounds[:, None], self._clients
            all_words = seeding.seed_words(_MINIBATCHES, keys.reshape(-1, 3))
            for round_number, round_words in zip(
                rounds.tolist(), np.split(all_words, self._ahead), strict=True
            ):
                self._words[seed, round_number] = round_words
        return self._words[seed, finished]


def batch_rows(federation: Federation, batch_size: PerClient) -> int:
    """Return the padded width of minibatches; other courses must not affect it, nor rounding."""
    largest = federation.num_samples[:, 0].max()
    return int(min(largest, max(batch_size.base, *(value for _, value in batch_size.own), 1)))


class RoundLayout:
    """The layout of the minibatches of some clients in one round, before rows are drawn."""

    def __init__(
        self,
        rows: Sequence[NDArray[np.int64]],
        batch_size: NDArray[np.int64],
        epochs: NDArray[np.int64],
        width: int,
    ) -> None:
        held = np.array([len(client_rows) for client_rows in rows])
        per_epoch = -(-held // batch_size)
        steps = epochs * per_epoch
        step = np.arange(steps.max())[:, None]
        # (steps, clients) rows of a minibatch that are not padding.
        self.sizes = np.minimum(held - step % np.maximum(per_epoch, 1) * batch_size, batch_size)
        self.sizes[step >= steps] = 0
        self._rows = rows
        self._shape = (len(rows), len(step), width)
        plan = zip(rows, batch_size.tolist(), per_epoch.tolist(), epochs.tolist(), strict=True)
        self._places = [
            _places(len(client_rows), size, stride, repeats, width)
            for client_rows, size, stride, repeats in plan
        ]

    def draw(self, streams: Sequence[np.random.Generator]) -> NDArray[np.int64]:
        """Return the (clients, steps, width) rows of all minibatches; padding is 0."""
        clients, steps, width = self._shape
        flat = np.zeros((clients, steps * width), dtype=np.int64)
        for line, rng, client_rows, epochs in zip(
            flat, streams, self._rows, self._places, strict=True
        ):
            for indices in epochs:
                if isinstance(indices, slice):
                    target = line[indices]
                    target[:] = client_rows
                    rng.shuffle(target)
                else:
                    line[indices] = client_rows[rng.permutation(len(client_rows))]
        return flat.reshape(self._shape)


def _places(
    held: int, size: int, per_epoch: int, epochs: int, width: int
) -> list[slice | NDArray[np.int64]]:
    """Return the positions of a client's rows in each local epoch."""
    stride = per_epoch * width
    starts = range(0, epochs * stride, max(stride, 1))
    if size >= width:  # only the last minibatch may be padded: no gaps
        return [slice(start, start + held) for start in starts]
    indices = np.arange(held)
    indices += indices // size * (width - size)
    return [indices + start for start in starts]


MAX_KNOWN = 16
"""Rounds whose items are cached: a single course often samples the same clients again."""


@dataclass(frozen=True, eq=False)
class ClientRngs:
    """The owners of random numbers: batch keys and clients, without the round."""

    batch_key: NDArray[np.int64]  # (items,) index of the batch key
    client: NDArray[np.int64]  # (items,) client; -1 for draws of the server

    @cached_property
    def distinct(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """The distinct (batch_key, client), and (items,) the index of each item among them."""
        width = int(self.client.max()) + 2
        keys, where = np.unique(self.batch_key * width + self.client + 1, return_inverse=True)
        pairs = (divmod(key, width) for key in keys.tolist())
        return [(index, client - 1) if client else (index,) for index, client in pairs], where


@dataclass(frozen=True, eq=False)
class StreamNames:
    """Names of the random streams of each item in one round."""

    seed: int  # of the federation
    rounds: Sequence[int]  # finished rounds of each batch key
    drawers: ClientRngs  # batch keys and clients

    @cached_property
    def distinct(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """The distinct (round, client), and (items,) the index of each item among them."""
        pairs, where = self.drawers.distinct
        return [(self.rounds[index], *client) for index, *client in pairs], where

    @property
    def of_items(self) -> list[tuple[int, ...]]:
        """The (round, client) of each item."""
        distinct, where = self.distinct
        return [distinct[index] for index in where.tolist()]


@dataclass(frozen=True, eq=False)
class ClientBatch:
    """Items, that is (course, client) pairs: by width, then those with most local steps first.

    The order by width holds for torch only; compiled code keeps the order of courses.
    """

    course: NDArray[np.int64]  # (items,) index of the course in its group
    client: NDArray[np.int64]  # (items,) index of the client
    batch_key: NDArray[np.int64]  # (items,) index of the course's batch key
    samples: NDArray[np.int64]  # (items,) training samples of the client
    batch_size: NDArray[np.int64]  # (items,) samples per minibatch
    width: NDArray[np.int64]  # (items,) rows of a minibatch, padding included
    epochs: NDArray[np.int64]  # (items,) local epochs
    steps: NDArray[np.int64]  # (items,) minibatches, each a local step
    # (items,) share of the client's samples among the course's sampled clients.
    weight: NDArray[np.float32]
    num_sampled: NDArray[np.int64]  # (items,) clients that the course samples per round

    def __len__(self) -> int:
        return len(self.course)

    def take(self, index: NDArray[np.intp] | slice) -> ClientBatch:
        """Return some of the items."""
        return ClientBatch(*(getattr(self, name)[index] for name in _FIELDS))

    @cached_property
    def counted_equally(self) -> ClientBatch:
        """The same items with equal weights: each 1 / (clients that its course samples)."""
        return replace(self, weight=(1.0 / self.num_sampled).astype(np.float32))

    @cached_property
    def drawers(self) -> ClientRngs:
        """The owners of random numbers."""
        return ClientRngs(self.batch_key, self.client)


_FIELDS = tuple(field.name for field in fields(ClientBatch))


class ClientSampler:
    """Samples the clients of a group's rounds; settings are (courses,) or (courses, clients)."""

    elapsed: int = 0  # rounds finished since it was created

    def __init__(
        self,
        needed: Sequence[BatchKey],
        finished: Sequence[int],
        federation: Federation,
        *,
        poisson: bool,
        min_rows: int,
        longest_first: bool,
    ) -> None:
        self._poisson, self._min_rows, self._longest_first = poisson, min_rows, longest_first
        self._seed, self._num_clients = federation.seed, federation.num_clients
        keys = [
            (needed_key.batch_size, round_number)
            for needed_key, round_number in zip(needed, finished, strict=True)
        ]
        place_of = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        self._finished = [round_number for _, round_number in place_of]
        self.batch_key = np.array([place_of[key] for key in keys])
        self.num_sampled = np.array([needed_key.num_sampled for needed_key in needed])
        self.samples = federation.num_samples[:, 0]  # (clients,) training samples
        self.epochs = _table([needed_key.num_epochs for needed_key in needed], self._num_clients)
        self.batch_size = _table(
            [needed_key.batch_size for needed_key in needed], self._num_clients
        )
        self.width = np.array(
            [batch_rows(federation, needed_key.batch_size) for needed_key in needed]
        )
        self._everybody = bool((self.num_sampled >= self._num_clients).all())
        self._known: dict[bytes, ClientBatch] = {}

    def items(self) -> ClientBatch:
        """Return the items of the next round, the same object for the same clients."""
        cohorts = self._participants(self.elapsed)
        client = np.concatenate(cohorts)
        course = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
        key = course.tobytes() + client.tobytes()
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            items = self.items_of(course, client, self.batch_key[course])
            self._known[key] = self.sorted(items)
        return self._known[key]

    def sorted(self, items: ClientBatch) -> ClientBatch:
        """Return items in the order of training."""
        if not self._longest_first:
            return items
        return items.take(np.lexsort((-items.steps, items.width)))

    def ahead(self, rounds: int) -> tuple[ClientBatch, NDArray[np.int64]]:
        """Return the items of the next rounds, and (items,) their rounds, in rising order."""
        cohorts = [
            members for r in range(rounds) for members in self._participants(self.elapsed + r)
        ]
        cohort = np.repeat(np.arange(len(cohorts)), [len(members) for members in cohorts])
        round_index, course = np.divmod(cohort, len(self.batch_key))
        client = np.concatenate(cohorts)
        return self.items_of(course, client, self.batch_key[course], cohort), round_index

    def items_of(
        self,
        course: NDArray[np.int64],
        client: NDArray[np.int64],
        batch_key: NDArray[np.int64],
        cohort: NDArray[np.int64] | None = None,
    ) -> ClientBatch:
        """Return items of (course, client) pairs, in this order.

        `cohort` (items,) groups the clients whose samples are shares of 1; by default the course.
        """
        size, batch_size = self.samples[client], self.batch_size[course, client]
        epochs = self.epochs[course, client]
        cohort = course if cohort is None else cohort
        total = np.bincount(cohort, size, minlength=len(self.batch_key))
        return ClientBatch(
            course,
            client,
            batch_key,
            size,
            batch_size,
            self.width[course],
            epochs,
            self._steps(size, batch_size, epochs),
            (size / np.maximum(total, 1)[cohort]).astype(np.float32),
            self.num_sampled[course],
        )

    def names(self, items: ClientBatch | None) -> StreamNames:
        """Return the stream names of the round for items, or for the servers if None."""
        drawers = self._server if items is None else items.drawers
        return StreamNames(
            self._seed, [finished + self.elapsed for finished in self._finished], drawers
        )

    @cached_property
    def _server(self) -> ClientRngs:
        return ClientRngs(self.batch_key, np.full_like(self.batch_key, -1))

    def sampled(self, ahead: int) -> NDArray[np.bool_]:
        """Return (courses, clients): whether a client trains `ahead` rounds after the next one."""
        found = np.zeros((len(self.batch_key), self._num_clients), dtype=np.bool_)
        for row, clients in zip(found, self._participants(self.elapsed + ahead), strict=True):
            row[clients] = True
        return found

    def _participants(self, elapsed: int) -> list[NDArray[np.int64]]:
        """Return the sorted cohort of each course in a round."""
        if self._everybody:
            return [np.arange(self._num_clients)] * len(self.batch_key)
        rounds = [(self._seed, finished + elapsed) for finished in self._finished]
        counts = zip(self.batch_key.tolist(), self.num_sampled.tolist(), strict=True)
        if self._poisson:
            return [poisson_clients(rounds[key], n, self._num_clients) for key, n in counts]
        orders = client_orders(rounds, self._num_clients)
        return [np.sort(orders[key][:n]) for key, n in counts]

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """(courses, clients) local steps of a round."""
        return self._steps(self.samples, self.batch_size, self.epochs)

    def _steps(
        self, samples: NDArray[np.int64], batch_size: NDArray[np.int64], epochs: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        full, remainder = np.divmod(samples, batch_size)
        rests = (remainder >= self._min_rows) & (remainder > 0)
        return np.asarray(epochs * (np.where(batch_size >= self._min_rows, full, 0) + rests))


def split_batch(items: ClientBatch, item_bytes: int, max_bytes: int) -> Iterator[ClientBatch]:
    """Yield items in portions of complete batch keys; large keys are split between clients."""
    limit = max(max_bytes // max(item_bytes, 1), 1)
    for portion in _portions(items, items.batch_key, limit):
        yield from _portions(portion, portion.client, limit)


def _portions(items: ClientBatch, key: NDArray[np.int64], limit: int) -> Iterator[ClientBatch]:
    """Yield at most `limit` items at a time, if possible; items of equal key stay together."""
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
    if not any(setting.own for setting in settings):
        return np.array([[int(setting.base)] for setting in settings]).repeat(num_clients, axis=1)
    table = np.empty((len(settings), num_clients), dtype=np.int64)
    for row, setting in enumerate(settings):
        table[row] = int(setting.base)
        for client, value in setting.own:
            table[row, client] = int(value)
    return table
