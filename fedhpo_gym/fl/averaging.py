"""The weighted average of what the clients of each course send back."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.torch_model import fit
from fedhpo_gym.fl.participants import Items

MIN_ALONE = 2**16
"""Numbers of a parameter from which on items are added one by one, without gathering them first."""
PIECE = 2**16
"""Numbers that are weighted and added at once."""


@dataclass(frozen=True, eq=False)
class _Order:
    """Items in the order of their clients."""

    index: Tensor  # (items,) which item comes next
    course: Tensor  # (items,) its course
    weight: Tensor  # (items,) its weight


class Averaging:
    """Adds clients to the averages of their courses, always in the order of the clients."""

    def __init__(self, together: bool, device: torch.device) -> None:
        """Average on a device; `together` as in `Model`: by one sum per course and parameter."""
        self._together = together
        self._device = device
        self._known: WeakKeyDictionary[Items, _Order] = WeakKeyDictionary()

    def add(self, average: Parameters, local: Parameters, items: Items) -> None:
        """Add weighted (own, items, ..) parameters to (own, courses, ..) averages."""
        if self._together:
            _add_together(average, local, items)
        elif any(value.numel() // value.shape[1] >= MIN_ALONE for value in average.values()):
            _add_alone(average, local, self._order(items))
        else:
            _add_gathered(average, local, self._order(items))

    def _order(self, items: Items) -> _Order:
        if items not in self._known:
            index = np.argsort(items.client, kind="stable")
            found = index, items.course[index], items.weight[index]
            self._known[items] = _Order(*(torch.from_numpy(x).to(self._device) for x in found))
        return self._known[items]


def _add_gathered(average: Parameters, local: Parameters, order: _Order) -> None:
    for name, value in average.items():
        part = local[name].index_select(1, order.index)
        value.index_add_(1, order.course, part.mul_(fit(order.weight, part)))


def _add_alone(average: Parameters, local: Parameters, order: _Order) -> None:
    places = zip(order.index.tolist(), order.course.tolist(), order.weight, strict=True)
    for item, course, weight in places:
        for name, value in average.items():
            _add_weighted(value[:, course], local[name][:, item], weight)


def _add_weighted(total: Tensor, part: Tensor, weight: Tensor) -> None:
    """Add weight x part to a total (own, ..), in pieces that stay in the cache."""
    own = len(total)
    pieces = (torch.split(one, PIECE, 1) for one in (total.view(own, -1), part.reshape(own, -1)))
    for into, piece in zip(*pieces, strict=True):
        into.add_(piece * weight)


def _add_together(average: Parameters, local: Parameters, items: Items) -> None:
    """Add weighted parameters to averages by one sum per course and parameter."""
    for course in np.unique(items.course).tolist():
        own = np.flatnonzero(items.course == course)
        for name, value in average.items():
            weight = torch.from_numpy(items.weight[own]).to(value.device)
            part = local[name].index_select(1, torch.from_numpy(own).to(value.device))
            value[:, course] += part.mul_(fit(weight, part)).sum(1)
