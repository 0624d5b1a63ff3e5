"""What the local steps of a round read, laid out by item before the first of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.minibatches import RoundLayout, row_weights
from fedhpo_gym.fl.prepared import PreparedFederation

MAX_LAID_OUT = 2**26
"""Numbers of minibatches that are laid out ahead of the steps that read them."""
MAX_KEPT = 2**18
"""Rows of minibatches whose layout is kept for the next round."""

Laid = tuple[Tensor, Tensor, Tensor, NDArray[np.int64]]
"""Inputs, targets, weights and sizes of the minibatches of one step."""


@dataclass(frozen=True, eq=False)
class _Portion:
    """Some steps of the items that still train, whatever rows are drawn.

    Attributes:
        at: client and step of each minibatch that is drawn.
        where: (minibatches,) which of them each item's is; None where each is one item's.
        counts: items of each step.
        weights: (items, width) weights of rows, by step.
        sizes: (items,) rows that are not padding, by step.
    """

    at: tuple[NDArray[np.int64], NDArray[np.int64]]
    where: Tensor | None
    counts: list[int]
    weights: Sequence[Tensor]
    sizes: Sequence[NDArray[np.int64]]


class Steps:
    """The local steps of items whose minibatches are equally wide.

    A step of small courses costs as much as its number of operations. So inputs of many steps are
    read at once, and what no draw decides is worked out once for all rounds of the same items.

    Attributes:
        items: the items, sorted by their number of steps: those still training are a prefix.
    """

    def __init__(self, prepared: PreparedFederation, items: Items, device: torch.device) -> None:
        """Lay out what no draw decides."""
        self.items = items
        self._prepared = prepared
        self._device = device
        clients, self._column = items.drawers.distinct
        first = np.unique(self._column, return_index=True)[1]
        epochs = np.zeros(len(clients), dtype=np.int64)
        np.maximum.at(epochs, self._column, items.epochs)
        rows = [prepared.federation.clients[client][0] for client in items.client[first].tolist()]
        self._width = int(items.width[0])
        self._layout = RoundLayout(rows, items.batch_size[first], epochs, self._width)
        self._active = np.searchsorted(-items.steps, -np.arange(items.steps[0]), side="left")
        self._kept: Sequence[_Portion] | None = None

    def batches(self, streams: Sequence[np.random.Generator]) -> Iterator[Laid]:
        """Yield inputs, targets, weights and sizes of the minibatches of each step.

        Args:
            streams: what the clients among `items.drawers.distinct` draw their minibatches from.
        """
        drawn = self._layout.draw(streams)
        for portion in self._portions():
            rows = torch.from_numpy(drawn[portion.at]).to(self._device)
            x, targets = self._prepared.take(rows), self._prepared.targets(rows)
            if portion.where is not None:
                x, targets = (
                    x.index_select(0, portion.where),
                    targets.index_select(1, portion.where),
                )
            yield from zip(
                x.split_with_sizes(portion.counts),
                targets.split_with_sizes(portion.counts, 1),
                portion.weights,
                portion.sizes,
                strict=True,
            )

    def _portions(self) -> Iterable[_Portion]:
        """Return the steps, as many at once as may be laid out; few are kept."""
        if self._kept is not None:
            return self._kept
        made = (self._portion(steps) for steps in self._split())
        if int(self._active.sum()) * self._width > MAX_KEPT:
            return made
        self._kept = list(made)
        return self._kept

    def _split(self) -> Iterator[NDArray[np.int64]]:
        row = torch.zeros((1, 1, 1), dtype=torch.int64, device=self._device)
        per_item = math.prod(self._prepared.inputs[row].shape) * self._width
        portion = np.cumsum(self._active) * per_item // MAX_LAID_OUT
        steps = np.arange(len(self._active))
        return filter(len, np.split(steps, np.flatnonzero(np.diff(portion)) + 1))

    def _portion(self, steps: NDArray[np.int64]) -> _Portion:
        active = self._active[steps]
        step = np.repeat(steps, active)
        item = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
        at: tuple[NDArray[np.int64], ...] = step, self._column[item]
        where: Tensor | None = None
        sizes = self._layout.sizes[at]
        weights = row_weights(sizes, self._width)
        if len(self._column) > self._layout.sizes.shape[1]:  # read the rows of a minibatch once
            shape = self._layout.sizes.shape
            places, index = np.unique(np.ravel_multi_index(at, shape), return_inverse=True)
            at, where = np.unravel_index(places, shape), torch.from_numpy(index).to(self._device)
        weight = torch.from_numpy(weights).to(self._device)
        counts = active.tolist()
        ends = itertools.accumulate(counts, initial=0)
        of_step = [sizes[start:end] for start, end in itertools.pairwise(ends)]
        return _Portion((at[1], at[0]), where, counts, torch.split(weight, counts), of_step)
