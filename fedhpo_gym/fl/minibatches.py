"""Which clients train in a round and on which minibatches: drawn from the seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core import seeding
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import PerClient

MAX_PREPARED = 256
"""Streams that are prepared at once: so many cost as much as fifteen that are made one by one."""
MIN_PREPARED = 32
"""Streams that must be used of those prepared at once to be worth it; so many that are asked for
at once are made together anyway."""
_MINIBATCHES = "minibatches"


def row_weights(sizes: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return (..., width) weights of the rows of minibatches: 1 / size, and 0 where padded."""
    share = (1.0 / np.maximum(sizes, 1)).astype(np.float32)[..., None]
    return np.where(np.arange(width) < sizes[..., None], share, np.float32(0.0))


def client_orders(rounds: Sequence[tuple[int, int]], num_clients: int) -> list[NDArray[np.int64]]:
    """Return orders of sampling by (seed, finished rounds); m clients are the first m."""
    return [rng.permutation(num_clients) for rng in seeding.streams("clients", rounds)]


def poisson_clients(name: tuple[int, int], number: int, num_clients: int) -> NDArray[np.int64]:
    """Return who takes part in (seed, finished rounds) where everybody decides alone."""
    drawn = seeding.stream(name[0], "poisson", name[1]).random(num_clients)
    return np.flatnonzero(drawn < number / num_clients)


def client_streams(names: Sequence[tuple[int, ...]]) -> list[np.random.Generator]:
    """Return what clients draw their minibatches from, by (seed, finished rounds, client)."""
    return list(seeding.streams(_MINIBATCHES, names))


class ClientStreams:
    """The same as `client_streams`, for few clients round after round."""

    def __init__(self, num_clients: int) -> None:
        self._clients = np.arange(num_clients)
        self._ahead = MAX_PREPARED // num_clients
        self._words: dict[tuple[int, int], NDArray[np.uint64]] = {}
        self._asked = False

    def __call__(self, names: Sequence[tuple[int, ...]]) -> list[np.random.Generator]:
        """Return what clients draw from, by (seed, finished rounds, client)."""
        # Courses that are grouped anew before every round come here only once.
        asked, self._asked = self._asked, True
        if not asked or not self._worth(names):
            return client_streams(names)
        return [
            seeding.started(self._of(seed, finished)[client]) for seed, finished, client in names
        ]

    def _worth(self, names: Sequence[tuple[int, ...]]) -> bool:
        """Return whether preparing all clients' streams of each seed and round pays off."""
        if len(names) >= MIN_PREPARED:
            return False
        rounds = {(seed, finished) for seed, finished, _ in names}
        used = self._ahead * len(names)
        return used >= MIN_PREPARED * len(rounds) and all(seed < seeding.WORD for seed, _ in rounds)

    def _of(self, seed: int, finished: int) -> NDArray[np.uint64]:
        """Return the (clients, 4) first words of a round's streams."""
        if (seed, finished) not in self._words:
            if len(self._words) >= MIN_PREPARED * self._ahead:
                self._words.clear()
            rounds = np.arange(finished, finished + self._ahead)
            keys = np.empty((self._ahead, len(self._clients), 3), dtype=np.uint32)
            keys[..., 0], keys[..., 1], keys[..., 2] = seed, rounds[:, None], self._clients
            words = seeding.first_words(_MINIBATCHES, keys.reshape(-1, 3))
            for number, own in zip(rounds.tolist(), np.split(words, self._ahead), strict=True):
                self._words[seed, number] = own
        return self._words[seed, finished]


def batch_rows(federation: Federation, batch_size: PerClient) -> int:
    """Return the rows of minibatch tensors; neighbours decide none, or rounding would differ."""
    largest = federation.num_samples[:, 0].max()
    return int(min(largest, max(batch_size.base, *(value for _, value in batch_size.own), 1)))


class RoundLayout:
    """Where the minibatches of some clients lie in one round, whatever rows are drawn for them."""

    def __init__(
        self,
        rows: Sequence[NDArray[np.int64]],
        batch_size: NDArray[np.int64],
        epochs: NDArray[np.int64],
        width: int,
    ) -> None:
        held = np.array([len(own) for own in rows])
        per_epoch = -(-held // batch_size)
        steps = epochs * per_epoch
        step = np.arange(steps.max())[:, None]
        # (steps, clients) rows that are not padding.
        self.sizes = np.minimum(held - step % np.maximum(per_epoch, 1) * batch_size, batch_size)
        self.sizes[step >= steps] = 0
        self._rows = rows
        self._shape = (len(rows), len(step), width)
        plan = zip(rows, batch_size.tolist(), per_epoch.tolist(), epochs.tolist(), strict=True)
        self._places = [
            _places(len(own), size, stride, repeats, width) for own, size, stride, repeats in plan
        ]

    def draw(self, streams: Sequence[np.random.Generator]) -> NDArray[np.int64]:
        """Return the (clients, steps, width) rows of all minibatches; 0 where they are padded."""
        clients, steps, width = self._shape
        flat = np.zeros((clients, steps * width), dtype=np.int64)
        for line, rng, own, places in zip(flat, streams, self._rows, self._places, strict=True):
            for place in places:
                if isinstance(place, slice):
                    drawn = line[place]
                    drawn[:] = own
                    rng.shuffle(drawn)
                else:
                    line[place] = own[rng.permutation(len(own))]
        return flat.reshape(self._shape)


def _places(
    held: int, size: int, per_epoch: int, epochs: int, width: int
) -> list[slice | NDArray[np.int64]]:
    """Return where a client's rows of each local epoch are put."""
    stride = per_epoch * width
    starts = range(0, epochs * stride, max(stride, 1))
    if size >= width:  # minibatches are not padded, but perhaps the last: no gaps
        return [slice(start, start + held) for start in starts]
    place = np.arange(held)
    place += place // size * (width - size)
    return [place + start for start in starts]
