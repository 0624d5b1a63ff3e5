"""Random numbers inside a round, named by seed, round and client: the same for every course."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedhpo_gym.fl.items import Names
from fedhpo_gym.seeding import stream


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
