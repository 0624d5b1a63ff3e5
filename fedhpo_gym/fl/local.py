"""Local training: all items of a round take their SGD steps together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.draws import Draws, Names
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.minibatches import RoundBatches, client_streams, draw_minibatches, row_weights
from fedhpo_gym.fl.models import Minibatch, Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.shared import SharedMatrix
from fedhpo_gym.fl.stack import Stack

MAX_LAID_OUT = 2**26
"""Numbers of minibatches that are laid out ahead of the steps that read them."""


Laid = tuple[Tensor, Tensor, Tensor, NDArray[np.int64]]
"""Inputs, targets, weights and sizes of the minibatches of one step."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """How some items train.

    Attributes:
        items: the items.
        names: whom random numbers are drawn for.
        streams: what minibatches are drawn from.
        column: (items,) index into `streams`.
        rate: (items, 1, slots) learning rates.
        decay: (items, 1, slots) factors of the parameters.
        others: (items, 1, slots) values of the model's hyperparameters, by name.
    """

    items: Items
    names: Names
    streams: Sequence[np.random.Generator]
    column: NDArray[np.int64]
    rate: Tensor
    decay: Tensor
    others: Mapping[str, Tensor]


class LocalTraining:
    """Runs the local steps of items of one group."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        """Train on a stack's federations."""
        self._stack = stack
        self._model = stack.model
        self._device = device

    def run(
        self,
        parameters: Parameters,
        items: Items,
        settings: Hyperparameters,
        names: Names,
        pull: Tensor | None = None,
        anchor: Parameters | None = None,
        shared: Mapping[str, SharedMatrix] | None = None,
    ) -> None:
        """Train (.., items, .., slots) parameters in place, through all local steps of a round.

        Args:
            parameters: parameters of the items.
            items: the items.
            settings: hyperparameters of the courses.
            names: whom random numbers are drawn for.
            pull: (items, 1, slots) strength of the pull towards `anchor`, see `Algorithm.pull`.
            anchor: parameters of the items before training.
            shared: what all items, then of one block, have instead of parameters of their own.
        """
        rows = settings.rows(items)
        rate, decay = settings.rate[rows], settings.decay[rows]
        if pull is not None:
            pull = rate * pull
            decay = decay - pull
        others = settings.of_model(items)
        named, column = names.distinct
        streams = client_streams(named)
        # Products have one shape per width, whatever else is trained.
        bounds = [0, *(np.flatnonzero(np.diff(items.width)) + 1).tolist(), len(items)]
        for start, end in itertools.pairwise(bounds):
            span = slice(start, end)
            pulled = None
            if pull is not None and anchor is not None:
                pulled = pull[span], {name: value[:, span] for name, value in anchor.items()}
            self._train(
                {name: value[:, span] for name, value in parameters.items()},
                _Plan(
                    items.take(span),
                    names.take(span),
                    streams,
                    column[span],
                    rate[span],
                    decay[span],
                    {name: value[span] for name, value in others.items()},
                ),
                pulled,
                shared or {},
            )

    def _train(
        self,
        parameters: Parameters,
        plan: _Plan,
        pulled: tuple[Tensor, Parameters] | None,
        shared: Mapping[str, SharedMatrix],
    ) -> None:
        """Train items of one width; `pulled` says how strongly, and towards what."""
        draws = Draws(plan.names, self._device)
        trained = [name for name in parameters if name not in self._model.buffers]
        for x, targets, weights, sizes in self._batches(plan):
            count = len(sizes)
            left_out = self._left_out(sizes)
            batch = Minibatch(
                x=x,
                targets=targets,
                rates=_unless(left_out, weights * plan.rate[:count], 0.0),
                decay=_unless(left_out, plan.decay[:count], 1.0),
                sizes=sizes,
                settings={name: value[:count] for name, value in plan.others.items()},
                uniform=_uniform(draws, count),
                shared=shared,
            )
            part = {name: value[:, :count] for name, value in parameters.items()}
            self._model.sgd_step(part, batch)
            if pulled is None:
                continue
            pull, anchor = pulled
            for name in trained:
                strength = fit(_unless(left_out, pull[:count], 0.0), part[name])
                part[name].addcmul_(strength, anchor[name][:, :count])
            for matrix in shared.values():
                matrix.pull(_unless(left_out, pull[:count], 0.0)[:, 0, 0])

    def _left_out(self, sizes: NDArray[np.int64]) -> Tensor | None:
        """(items, 1, 1): the minibatch is too small for the model; None where none is."""
        too_small = sizes < self._model.min_rows
        if self._model.min_rows == 1 or not too_small.any():
            return None
        return torch.from_numpy(too_small).to(self._device)[:, None, None]

    def _batches(self, plan: _Plan) -> Iterator[Laid]:
        """Yield inputs, targets, weights and sizes of the minibatches of each step.

        Items are sorted by their number of steps: the ones still training are a prefix.
        """
        items = plan.items
        drawn, column = self._draw(plan)
        active = np.searchsorted(-items.steps, -np.arange(items.steps[0]), side="left")
        row = torch.zeros((1, 1, 1), dtype=torch.int64, device=self._device)
        per_item = math.prod(self._stack.inputs[row].shape) * int(items.width[0])
        # Everything a step reads is laid out by item before the first step: a step of small
        # courses costs as much as its number of tensor operations.
        portion = np.cumsum(active) * per_item // MAX_LAID_OUT
        for steps in np.split(np.arange(len(active)), np.flatnonzero(np.diff(portion)) + 1):
            if len(steps):
                yield from self._lay_out(drawn, steps, active[steps], column)

    def _draw(self, plan: _Plan) -> tuple[RoundBatches, NDArray[np.int64]]:
        """Draw the minibatches of all clients, and say which column is each item's."""
        items = plan.items
        found, first, where = np.unique(plan.column, return_index=True, return_inverse=True)
        epochs = np.zeros(len(found), dtype=np.int64)
        np.maximum.at(epochs, where, items.epochs)
        rows = [
            self._stack.rows(federation, client)
            for federation, client in zip(
                items.federation[first].tolist(), items.client[first].tolist(), strict=True
            )
        ]
        streams, size = [plan.streams[i] for i in found.tolist()], items.batch_size[first]
        return draw_minibatches(streams, rows, size, epochs, int(items.width[0])), where

    def _lay_out(
        self,
        drawn: RoundBatches,
        steps: NDArray[np.int64],
        active: NDArray[np.int64],
        column: NDArray[np.int64],
    ) -> Iterator[Laid]:
        """Lay out some steps of the items that still train, one step after the other."""
        step = np.repeat(steps, active)
        item = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
        at: tuple[NDArray[np.int64], ...] = step, column[item]
        where: NDArray[np.int64] | None = None
        if len(column) > drawn.sizes.shape[1]:  # the rows of a minibatch are gathered once
            places, where = np.unique(
                np.ravel_multi_index(at, drawn.sizes.shape), return_inverse=True
            )
            at = np.unravel_index(places, drawn.sizes.shape)
        rows = torch.from_numpy(drawn.rows[at]).to(self._device)
        x, target = self._stack.take(rows), self._stack.targets(rows)
        sizes = drawn.sizes[at]
        weight = torch.from_numpy(row_weights(sizes, rows.shape[1])).to(self._device)
        if where is not None:
            index = torch.from_numpy(where).to(self._device)
            x, target = x.index_select(0, index), target.index_select(1, index)
            weight, sizes = weight.index_select(0, index), sizes[where]
        target, weight = target.unsqueeze(-1), weight.unsqueeze(-1)
        for end, count in zip(np.cumsum(active).tolist(), active.tolist(), strict=True):
            span = slice(end - count, end)
            yield x[span], target[:, span], weight[span], sizes[span]


def _uniform(draws: Draws, items: int) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda shape: draws.uniform(items, shape)


def _unless(where: Tensor | None, values: Tensor, otherwise: float) -> Tensor:
    return values if where is None else torch.where(where, otherwise, values)
