"""Random numbers inside a round, named by seed, round and client: the same for every course."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.seeding import stream


class Draws:
    """The random numbers of local training in one round.

    Every client has its own stream, which goes on from step to step; so what one client draws
    depends neither on the other clients nor on the courses that are trained beside.

    Attributes:
        seed: seed of the courses.
        round: finished rounds.
    """

    def __init__(self, seed: int, round_index: int, device: torch.device) -> None:
        """Start the streams of a round."""
        self.seed = seed
        self.round = round_index
        self._device = device
        self._streams: dict[int, np.random.Generator] = {}

    def uniform(self, clients: NDArray[np.int64], shape: tuple[int, ...]) -> Tensor:
        """Return (clients, *shape) float32 from U[0, 1), equal for equal clients."""
        distinct, where = np.unique(clients, return_inverse=True)
        drawn = np.stack([self._of(int(c)).random(shape, dtype=np.float32) for c in distinct])
        return torch.from_numpy(drawn[where]).to(self._device)

    def _of(self, client: int) -> np.random.Generator:
        if client not in self._streams:
            self._streams[client] = stream(self.seed, "local training", self.round, client)
        return self._streams[client]


def normal_like(
    parameter: Tensor, seed: int, purpose: str, round_index: int, clients: NDArray[np.int64] | None
) -> Tensor:
    """Draw standard normal numbers (own, items, .., 1): every slot of an item gets the same.

    Args:
        parameter: (own, items, .., slots) gives the shape.
        seed: seed of the courses.
        purpose: names the stream.
        round_index: finished rounds.
        clients: (items,) client of each item; None for draws of the server.
    """
    own, items, *inner, _ = parameter.shape
    who = np.full(items, -1) if clients is None else clients
    distinct, where = np.unique(who, return_inverse=True)
    keys = [(round_index,) if c < 0 else (round_index, int(c)) for c in distinct]
    drawn = np.stack(
        [stream(seed, purpose, *k).standard_normal((own, *inner), dtype=np.float32) for k in keys],
        axis=1,
    )
    return torch.from_numpy(drawn[:, where][..., None]).to(parameter.device)
