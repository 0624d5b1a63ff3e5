"""Random numbers inside a round, named by seed, round and client: the same for every course."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.seeding import stream


@dataclass(frozen=True, eq=False)
class Drawers:
    """Whom random numbers are drawn for, whatever the round.

    Attributes:
        batch_key: (items,) index of the batch key.
        client: (items,) client; -1 for draws of the server.
    """

    batch_key: NDArray[np.int64]
    client: NDArray[np.int64]

    @cached_property
    def distinct(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """The (batch_key, client) that occur, and (items,) which of them each item has.

        Where there is no client, the server's, it is left out.
        """
        width = int(self.client.max()) + 2
        found, where = np.unique(self.batch_key * width + self.client + 1, return_inverse=True)
        pairs = (divmod(key, width) for key in found.tolist())
        return [(index, client - 1) if client else (index,) for index, client in pairs], where


@dataclass(frozen=True, eq=False)
class Names:
    """What names the random numbers of each item in one round.

    Attributes:
        seed: of the federation.
        rounds: finished rounds of each batch key.
        drawers: whom they are drawn for.
    """

    seed: int
    rounds: Sequence[int]
    drawers: Drawers

    @cached_property
    def distinct(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """The (round, client) that occur, and (items,) which of them each item has."""
        pairs, where = self.drawers.distinct
        return [(self.rounds[index], *client) for index, *client in pairs], where

    @property
    def of_items(self) -> list[tuple[int, ...]]:
        """The (round, client) of each item."""
        distinct, where = self.distinct
        return [distinct[index] for index in where.tolist()]


class Draws:
    """The random numbers of local training in one round.

    Every client has its own stream, which goes on from step to step; so what one client draws
    depends neither on the other clients nor on the courses that are trained beside.
    """

    def __init__(self, names: Names) -> None:
        """Start the streams of a round; `names` are those whom numbers are drawn for."""
        self._names = names
        self._streams: dict[int, np.random.Generator] = {}

    def uniform(self, items: int, shape: tuple[int, ...]) -> Tensor:
        """Return (items, *shape) float32 from U[0, 1) for the first items: per name the same.

        They are in the memory of the processor, whatever the device.
        """
        distinct, where = np.unique(self._names.distinct[1][:items], return_inverse=True)
        drawn = np.empty((len(distinct), *shape), dtype=np.float32)
        for row, index in zip(drawn, distinct.tolist(), strict=True):
            self._of(index).random(dtype=np.float32, out=row)
        if not np.array_equal(where, np.arange(len(distinct))):
            drawn = drawn[where]
        return torch.from_numpy(drawn)

    def _of(self, index: int) -> np.random.Generator:
        if index not in self._streams:
            keys = self._names.distinct[0][index]
            self._streams[index] = stream(self._names.seed, "local training", *keys)
        return self._streams[index]
