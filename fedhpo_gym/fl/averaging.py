"""The weighted average of what the clients of each block send back."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import fit

MIN_ALONE = 2**16
"""Numbers of a parameter from which on items are added one by one, without gathering them first."""
PIECE = 2**16
"""Numbers that are weighted and added at once."""


@dataclass(frozen=True, eq=False)
class _Order:
    """Items in the order of their clients.

    Attributes:
        index: (items,) which item comes next.
        block: (items,) its block.
        weight: (items, 1, 1) its weight.
    """

    index: Tensor
    block: Tensor
    weight: Tensor


class Averaging:
    """Adds clients to the averages of their blocks, always in the order of the clients."""

    def __init__(self, together: bool, device: torch.device) -> None:
        """Average on a device; `together` as in `Model`: by one sum per block and parameter."""
        self._together = together
        self._device = device
        self._known: WeakKeyDictionary[Items, _Order] = WeakKeyDictionary()

    def add(self, average: Parameters, local: Parameters, items: Items) -> None:
        """Add weighted (.., items, .., slots) parameters to (.., blocks, .., slots) averages."""
        if self._together:
            _add_together(average, local, items)
        elif any(value.numel() // value.shape[1] >= MIN_ALONE for value in average.values()):
            _add_alone(average, local, self._order(items))
        else:
            _add_gathered(average, local, self._order(items))

    def _order(self, items: Items) -> _Order:
        if items not in self._known:
            index = np.argsort(items.client, kind="stable")
            found = torch.from_numpy(index), torch.from_numpy(items.block[index])
            weight = torch.from_numpy(items.weight[index])[:, None, None]
            self._known[items] = _Order(*(one.to(self._device) for one in (*found, weight)))
        return self._known[items]


def _add_gathered(average: Parameters, local: Parameters, order: _Order) -> None:
    for name, value in average.items():
        part = local[name].index_select(1, order.index)
        value.index_add_(1, order.block, part.mul_(fit(order.weight, part)))


def _add_alone(average: Parameters, local: Parameters, order: _Order) -> None:
    places = zip(order.index.tolist(), order.block.tolist(), order.weight, strict=True)
    for item, block, weight in places:
        for name, value in average.items():
            _add_weighted(value[:, block], local[name][:, item], weight)


def _add_weighted(total: Tensor, part: Tensor, weight: Tensor) -> None:
    """Add weight x part to a total (own, .., slots), in pieces that stay in the cache."""
    rows = max(PIECE * part.shape[1] // max(part.numel(), 1), 1)
    for into, piece in zip(torch.split(total, rows, 1), torch.split(part, rows, 1), strict=True):
        into.add_(piece * weight)


def _add_together(average: Parameters, local: Parameters, items: Items) -> None:
    """Do the same by one sum per block and parameter."""
    for block in np.unique(items.block).tolist():
        own = np.flatnonzero(items.block == block)
        for name, value in average.items():
            weight = torch.from_numpy(items.weight[own])[:, None, None].to(value.device)
            part = local[name].index_select(1, torch.from_numpy(own).to(value.device))
            value[:, block] += part.mul_(fit(weight, part)).sum(1)
