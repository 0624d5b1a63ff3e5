"""Random numbers inside a round, named by seed, round and client: the same for every course."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.seeding import stream


@dataclass(frozen=True, eq=False)
class Names:
    """Whom random numbers are drawn for: what names the stream of each item.

    Attributes:
        batch_keys: (seed of the federation, finished rounds) of each batch_key.
        batch_key: (items,) index of the batch_key.
        client: (items,) client; -1 for draws of the server.
    """

    batch_keys: Sequence[tuple[int, int]]
    batch_key: NDArray[np.int64]
    client: NDArray[np.int64]

    def take(self, items: slice) -> Names:
        """Return the names of some items."""
        return Names(self.batch_keys, self.batch_key[items], self.client[items])

    @cached_property
    def distinct(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """The (seed, round, client) that occur, and (items,) which of them each item has."""
        width = int(self.client.max()) + 2
        found, where = np.unique(self.batch_key * width + self.client + 1, return_inverse=True)
        pairs = [divmod(key, width) for key in found.tolist()]
        return [(*self.batch_keys[i], *([c - 1] if c else [])) for i, c in pairs], where


class Draws:
    """The random numbers of local training in one round.

    Every client has its own stream, which goes on from step to step; so what one client draws
    depends neither on the other clients nor on the courses that are trained beside.
    """

    def __init__(self, names: Names, device: torch.device) -> None:
        """Start the streams of a round.

        Args:
            names: whom numbers are drawn for.
            device: where they are put.
        """
        self._names = names
        self._device = device
        self._streams: dict[int, np.random.Generator] = {}

    def uniform(self, items: int, shape: tuple[int, ...]) -> Tensor:
        """Return (items, *shape) float32 from U[0, 1) for the first items: per name the same."""
        distinct, where = np.unique(self._names.distinct[1][:items], return_inverse=True)
        drawn = np.stack([self._of(i).random(shape, dtype=np.float32) for i in distinct.tolist()])
        return torch.from_numpy(drawn[where]).to(self._device)

    def _of(self, index: int) -> np.random.Generator:
        if index not in self._streams:
            seed, *keys = self._names.distinct[0][index]
            self._streams[index] = stream(seed, "local training", *keys)
        return self._streams[index]


def normal_like(parameter: Tensor, purpose: str, names: Names) -> Tensor:
    """Draw standard normal numbers (own, items, .., 1): every slot of an item gets the same.

    Args:
        parameter: (own, items, .., slots) gives the shape.
        purpose: names the stream, together with `names`.
        names: whom numbers are drawn for.
    """
    own, _, *inner, _ = parameter.shape
    distinct, where = names.distinct
    drawn = np.stack(
        [
            stream(seed, purpose, *keys).standard_normal((own, *inner), dtype=np.float32)
            for seed, *keys in distinct
        ],
        axis=1,
    )
    return torch.from_numpy(drawn[:, where][..., None]).to(parameter.device)
