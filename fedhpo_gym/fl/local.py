"""Local training: all items of a round take their SGD steps together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedhpo_gym.fl.draws import Draws
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.items import Items, Names
from fedhpo_gym.fl.minibatches import ClientStreams
from fedhpo_gym.fl.models import Minibatch, Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.plans import Chosen, Plan
from fedhpo_gym.fl.prepared import PreparedFederation
from fedhpo_gym.fl.shared import SharedMatrix
from fedhpo_gym.fl.shared_together import SharedMatrices
from fedhpo_gym.fl.steps import Steps


class LocalTraining:
    """Runs the local steps of items of one group."""

    def __init__(self, prepared: PreparedFederation, device: torch.device) -> None:
        """Train on a federation."""
        self._prepared = prepared
        self._model = prepared.model
        self._device = device
        self._streams = ClientStreams(prepared.num_clients)
        self._known: WeakKeyDictionary[Items, Sequence[tuple[slice, Steps]]] = WeakKeyDictionary()
        self._plans: WeakKeyDictionary[Items, tuple[Tensor, Sequence[Plan]]] = WeakKeyDictionary()

    def run(
        self,
        parameters: Parameters,
        items: Items,
        settings: Hyperparameters,
        names: Names,
        pull: Tensor | None = None,
        anchor: Parameters | None = None,
        shared: Mapping[str, SharedMatrix | SharedMatrices] | None = None,
        shift: Parameters | None = None,
    ) -> None:
        """Train (own, items, ..) parameters in place, through all local steps of a round.

        Args:
            parameters: parameters of the items.
            items: the items.
            settings: hyperparameters of the courses.
            names: whom random numbers are drawn for.
            pull: (items,) strength of the pull towards `anchor`, see `Algorithm.pull`.
            anchor: parameters of the items before training.
            shared: what all items, then of one course, have instead of parameters of their own.
            shift: what is added to the gradients, see `Algorithm.correction`.
        """
        plans = self._planned(items, settings, pull)
        named = [replace(names, drawers=plan.steps.items.drawers) for plan in plans]
        drawn = [(names.seed, *name) for part in named for name in part.distinct[0]]
        streams = iter(self._streams(drawn))
        for plan, part in zip(plans, named, strict=True):
            own = list(itertools.islice(streams, len(part.distinct[0])))
            towards = _of(anchor, plan.span) if pull is not None and anchor is not None else {}
            added = _of(shift or {}, plan.span)
            self._train(
                _of(parameters, plan.span), plan, Draws(part), own, towards, shared or {}, added
            )

    def _planned(
        self, items: Items, settings: Hyperparameters, pull: Tensor | None
    ) -> Sequence[Plan]:
        """Return how the items of each width train: while the learning rates last, the same."""
        known = self._plans.get(items)
        if known is not None and known[0] is settings.rate and pull is None:
            return known[1]
        rows = torch.from_numpy(settings.rows(items)).to(self._device)
        rate, decay = settings.rate.index_select(0, rows), settings.decay.index_select(0, rows)
        momentum = None if settings.momentum is None else settings.momentum.index_select(0, rows)
        if pull is not None:
            pull = rate * pull
            decay = decay - pull
        others = settings.of(items, list(self._model.hyperparameters))
        chosen = Chosen(rate, decay, others, pull, momentum)
        plans = [Plan(*part, chosen) for part in self._parts(items)]
        if pull is None:
            self._plans[items] = settings.rate, plans
        return plans

    def _parts(self, items: Items) -> Sequence[tuple[slice, Steps]]:
        """Return the items by width: products have one shape each, whatever else is trained."""
        if items not in self._known:
            bounds = [0, *(np.flatnonzero(np.diff(items.width)) + 1).tolist(), len(items)]
            spans = [slice(start, end) for start, end in itertools.pairwise(bounds)]
            self._known[items] = [
                (span, Steps(self._prepared, items.take(span), self._device)) for span in spans
            ]
        return self._known[items]

    def _train(
        self,
        parameters: Parameters,
        plan: Plan,
        draws: Draws,
        streams: Sequence[np.random.Generator],
        anchor: Parameters,
        shared: Mapping[str, SharedMatrix | SharedMatrices],
        shift: Parameters,
    ) -> None:
        """Train items of one width.

        Args:
            parameters: of the items.
            plan: how they train.
            draws: their random numbers, but for minibatches.
            streams: what their minibatches are drawn from.
            anchor: what they are pulled to, if they are.
            shared: see `run`.
            shift: likewise.
        """
        trained = [name for name in parameters if name not in self._model.buffers]
        part, count = parameters, len(plan.steps.items)
        now = plan.first(count)
        moves = None if now.momentum is None else Moves(parameters, trained)
        for number, (x, targets, weights, sizes) in enumerate(plan.steps.batches(streams)):
            if len(sizes) != count:
                count = len(sizes)
                part = {name: value[:, :count] for name, value in parameters.items()}
                now = plan.first(count)
            batch = Minibatch(
                x=x,
                targets=targets,
                rates=plan.rates(number, weights, now.rate),
                decay=now.decay,
                sizes=sizes,
                settings=now.others,
                uniform=partial(draws.uniform, count),
                shared=shared,
            )
            self._model.sgd_step(part, batch)
            if now.pull is not None:
                for name in trained:
                    part[name].addcmul_(fit(now.pull, part[name]), anchor[name][:, :count])
                for matrix in shared.values():
                    matrix.pull(now.pull)
            for name, added in shift.items():
                part[name].addcmul_(fit(now.rate, added), added[:, :count], value=-1.0)
            if now.momentum is not None and moves is not None:
                moves.repeat(part, now.momentum)
                for matrix in shared.values():
                    matrix.repeat(now.momentum)


class Moves:
    """What local steps moved last: momentum repeats a share of it (Polyak, 1964).

    With a step u that a model takes by itself, w <- w - v where v <- momentum v + u: those of
    `torch.optim.SGD` while the learning rate stays, as it does in a round.
    """

    def __init__(self, parameters: Parameters, names: Sequence[str]) -> None:
        """Begin a round: nothing has moved."""
        self._before = {name: parameters[name].clone() for name in names}
        self._moved = {name: torch.zeros_like(parameters[name]) for name in names}

    def repeat(self, parameters: Parameters, momentum: Tensor) -> None:
        """Add a share of the last move of the first items to their parameters, in place."""
        count = len(momentum)
        for name, moved in self._moved.items():
            value, last = parameters[name], moved[:, :count]
            before = self._before[name][:, :count]
            value.addcmul_(fit(momentum, value), last)
            last.copy_(value - before)
            before.copy_(value)


def _of(parameters: Parameters, span: slice) -> Parameters:
    return {name: value[:, span] for name, value in parameters.items()}
