"""Local training: all items of a round take their SGD steps together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.draws import Draws, Names
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.minibatches import client_streams
from fedhpo_gym.fl.models import Minibatch, Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.shared import SharedMatrix
from fedhpo_gym.fl.shared_together import SharedMatrices
from fedhpo_gym.fl.stack import Stack
from fedhpo_gym.fl.steps import Steps


@dataclass(frozen=True, eq=False)
class _Plan:
    """How items of one width train.

    Attributes:
        steps: what they read.
        names: whom random numbers are drawn for.
        streams: what their minibatches are drawn from.
        rate: (items, 1, slots) learning rates.
        decay: (items, 1, slots) factors of the parameters.
        others: (items, 1, slots) values of the model's hyperparameters, by name.
    """

    steps: Steps
    names: Names
    streams: Sequence[np.random.Generator]
    rate: Tensor
    decay: Tensor
    others: Mapping[str, Tensor]

    def first(self, count: int) -> _Plan:
        """Return how the first items train; they are those that train longest."""
        others = {name: value[:count] for name, value in self.others.items()}
        rest = self.steps, self.names, self.streams
        return _Plan(*rest, self.rate[:count], self.decay[:count], others)


class LocalTraining:
    """Runs the local steps of items of one group."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        """Train on a stack's federations."""
        self._stack = stack
        self._model = stack.model
        self._device = device
        self._known: WeakKeyDictionary[Items, Sequence[tuple[slice, Steps]]] = WeakKeyDictionary()

    def run(
        self,
        parameters: Parameters,
        items: Items,
        settings: Hyperparameters,
        names: Names,
        pull: Tensor | None = None,
        anchor: Parameters | None = None,
        shared: Mapping[str, SharedMatrix | SharedMatrices] | None = None,
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
        rate, decay = settings.rate.index_select(0, rows), settings.decay.index_select(0, rows)
        if pull is not None:
            pull = rate * pull
            decay = decay - pull
        others = settings.of_model(items)
        parts = self._parts(items)
        named = [Names(names.batch_keys, steps.items.drawers) for _, steps in parts]
        streams = iter(client_streams([name for part in named for name in part.distinct[0]]))
        for (span, steps), part in zip(parts, named, strict=True):
            pulled = None
            if pull is not None and anchor is not None:
                pulled = pull[span], {name: value[:, span] for name, value in anchor.items()}
            plan = _Plan(
                steps,
                part,
                list(itertools.islice(streams, len(part.distinct[0]))),
                rate[span],
                decay[span],
                {name: value[span] for name, value in others.items()},
            )
            own = {name: value[:, span] for name, value in parameters.items()}
            self._train(own, plan, pulled, shared or {})

    def _parts(self, items: Items) -> Sequence[tuple[slice, Steps]]:
        """Return the items by width: products have one shape each, whatever else is trained."""
        if items not in self._known:
            bounds = [0, *(np.flatnonzero(np.diff(items.width)) + 1).tolist(), len(items)]
            spans = [slice(start, end) for start, end in itertools.pairwise(bounds)]
            self._known[items] = [
                (span, Steps(self._stack, items.take(span), self._device)) for span in spans
            ]
        return self._known[items]

    def _train(
        self,
        parameters: Parameters,
        plan: _Plan,
        pulled: tuple[Tensor, Parameters] | None,
        shared: Mapping[str, SharedMatrix | SharedMatrices],
    ) -> None:
        """Train items of one width; `pulled` says how strongly, and towards what."""
        draws = Draws(plan.names)
        trained = [name for name in parameters if name not in self._model.buffers]
        part, now, count = parameters, plan, len(plan.steps.items)
        for x, targets, weights, sizes in plan.steps.batches(plan.streams):
            if len(sizes) != count:
                count = len(sizes)
                part = {name: value[:, :count] for name, value in parameters.items()}
                now = plan.first(count)
            left_out = self._left_out(sizes)
            batch = Minibatch(
                x=x,
                targets=targets,
                rates=_unless(left_out, weights * now.rate, 0.0),
                decay=_unless(left_out, now.decay, 1.0),
                sizes=sizes,
                settings=now.others,
                uniform=_uniform(draws, count),
                shared=shared,
            )
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
        if self._model.min_rows == 1:
            return None
        too_small = sizes < self._model.min_rows
        if not too_small.any():
            return None
        return torch.from_numpy(too_small).to(self._device)[:, None, None]


def _uniform(draws: Draws, items: int) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda shape: draws.uniform(items, shape)


def _unless(where: Tensor | None, values: Tensor, otherwise: float) -> Tensor:
    return values if where is None else torch.where(where, otherwise, values)
