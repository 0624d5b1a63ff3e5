"""Local training: all items of a round take their SGD steps together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.draws import Draws
from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.minibatches import RoundBatches, draw_round
from fedhpo_gym.fl.models import Inputs, Minibatch, Model, Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.packing import PerClient

MAX_LAID_OUT = 2**26
"""Numbers of minibatches that are laid out ahead of the steps that read them."""


class LocalTraining:
    """Runs the local steps of items of one group."""

    def __init__(
        self,
        federation: Federation,
        batch_size: PerClient,
        model: Model,
        inputs: Inputs,
        device: torch.device,
    ) -> None:
        self._federation = federation
        self._batch_size = batch_size
        self._model = model
        self._inputs = inputs
        self._device = device
        one_hot = np.eye(federation.num_classes, dtype=np.float32)[federation.labels]
        self._targets = torch.from_numpy(one_hot).to(device)

    def run(
        self,
        parameters: Parameters,
        items: Items,
        settings: Hyperparameters,
        round_index: int,
        pull: Tensor | None = None,
        anchor: Parameters | None = None,
    ) -> None:
        """Train (.., items, .., slots) parameters in place, through all local steps of a round.

        Args:
            parameters: parameters of the items.
            items: the items.
            settings: hyperparameters of the courses.
            round_index: finished rounds.
            pull: (items, 1, slots) strength of the pull towards `anchor`, see `Algorithm.pull`.
            anchor: parameters of the items before training.
        """
        rows = settings.rows(items)
        rate, decay = settings.rate[rows], settings.decay[rows]
        if pull is not None:
            pull = rate * pull
            decay = decay - pull
        draws = Draws(self._federation.seed, round_index, self._device)
        # Items are sorted by their number of steps: the ones still training are a prefix.
        active = np.searchsorted(-items.steps, -np.arange(items.steps[0]), side="left").tolist()
        others = settings.of_model(items)
        trained = [name for name in parameters if name not in self._model.buffers]
        for step, x, targets, weights, sizes in self._batches(items, round_index):
            count = active[step]
            left_out = self._left_out(sizes[:count])
            batch = Minibatch(
                x=x[:count],
                targets=targets[:, :count],
                rates=_unless(left_out, weights[:count] * rate[:count], 0.0),
                decay=_unless(left_out, decay[:count], 1.0),
                sizes=sizes[:count],
                settings={name: value[:count] for name, value in others.items()},
                uniform=_uniform(draws, items.client[:count]),
            )
            part = {name: value[:, :count] for name, value in parameters.items()}
            self._model.sgd_step(part, batch)
            if pull is not None and anchor is not None:
                for name in trained:
                    strength = fit(_unless(left_out, pull[:count], 0.0), part[name])
                    part[name].addcmul_(strength, anchor[name][:, :count])

    def _left_out(self, sizes: NDArray[np.int64]) -> Tensor | None:
        """(items, 1, 1): the minibatch is too small for the model; None where none is."""
        too_small = sizes < self._model.min_rows
        if not too_small.any():
            return None
        return torch.from_numpy(too_small).to(self._device)[:, None, None]

    def _batches(
        self, items: Items, round_index: int
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor, NDArray[np.int64]]]:
        """Yield step, inputs, targets, weights and sizes of the minibatches of all items."""
        clients, where = np.unique(items.client, return_inverse=True)
        epochs = int(items.epochs.max())
        drawn = draw_round(self._federation, round_index, clients, self._batch_size, epochs)
        column = torch.from_numpy(where).to(self._device)
        row = torch.zeros((1, 1, 1), dtype=torch.int64, device=self._device)
        per_step = math.prod(self._inputs[row].shape) * drawn.rows.shape[2] * len(items)
        chunk = max(MAX_LAID_OUT // per_step, 1)
        # Everything a step reads is laid out by item before the first step: a step of small
        # courses costs as much as its number of tensor operations.
        for first in range(0, int(items.steps[0]), chunk):
            span = slice(first, min(first + chunk, int(items.steps[0])))
            yield from self._lay_out(drawn, span, column)

    def _lay_out(
        self, drawn: RoundBatches, span: slice, column: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor, NDArray[np.int64]]]:
        rows = torch.from_numpy(drawn.rows[span]).to(self._device)
        x = self._inputs[rows].index_select(1, column)
        targets = self._targets[rows].permute(0, 3, 1, 2).index_select(2, column).unsqueeze(-1)
        weights = torch.from_numpy(drawn.weights[span]).to(self._device)
        weights = weights.index_select(1, column).unsqueeze(-1)
        sizes = drawn.sizes[span][:, column.cpu().numpy()]
        for offset in range(len(x)):
            yield span.start + offset, x[offset], targets[offset], weights[offset], sizes[offset]


def _uniform(draws: Draws, clients: NDArray[np.int64]) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda shape: draws.uniform(clients, shape)


def _unless(where: Tensor | None, values: Tensor, otherwise: float) -> Tensor:
    return values if where is None else torch.where(where, otherwise, values)
