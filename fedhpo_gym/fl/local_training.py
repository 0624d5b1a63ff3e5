"""Local training and evaluation with torch: all items of a group take their steps together.

`TorchTrainer` calls `LocalTraining.run` once a round and `ModelEvaluator` to measure models. An
item is a (course, client) pair. The minibatches of a round are laid out before its steps, as padded
arrays of equal width, and items with the most steps come first, so that step t trains a prefix of
the items. Layouts and settings that no random draw changes are cached from round to round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.algorithms.base import Parameters
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.models.torch_model import Minibatch, TorchFederation, fit, sum_classes
from fedhpo_gym.fl.participants import (
    ClientBatch,
    ClientStreams,
    RoundLayout,
    StreamNames,
    row_weights,
)
from fedhpo_gym.fl.shared_matrices import SharedMatrices, SharedMatrix
from fedhpo_gym.fl.trainer import LocalObjective

MAX_LOGITS = 2**19
"""Most logits that are computed at the same time, unless a single course has more."""
MAX_MEMBERSHIP = 2**24
"""Largest size of the 0/1 matrix that turns sums over rows of a client into products; a federation
that needs more is summed row by row."""


class ModelEvaluator:
    """Evaluates models on the data of some clients of a federation.

    Rows are sorted by label, so that the rows of a label are a contiguous slice; a group is a split
    of a client. Counts over a group are products with a 0/1 matrix, which are exact in any order.
    Losses are added row after row, so that results do not depend on a library's order of summation
    or on other items.
    """

    def __init__(
        self, prepared: TorchFederation, clients: Iterable[int], device: torch.device
    ) -> None:
        federation = prepared.federation
        groups = [rows for client in clients for rows in federation.clients[client]]
        rows = np.concatenate(groups)
        group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        order = np.argsort(federation.labels[rows], kind="stable")
        rows, group = rows[order], group[order]
        labels = np.arange(federation.num_classes + 1)
        bounds = np.searchsorted(federation.labels[rows], labels).tolist()
        self._model = prepared.model
        self._inputs = prepared.inputs
        self._num_classes, self._num_groups = federation.num_classes, len(groups)
        self._spans = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        self._rows = torch.from_numpy(rows).to(device)
        self._group = torch.from_numpy(group).to(device)
        self._sorted = torch.from_numpy(np.argsort(group, kind="stable")).to(device)
        counts = np.bincount(group, minlength=self._num_groups)
        self._start = torch.from_numpy(np.cumsum(counts) - counts).to(device)
        self._member: Tensor | None = None
        if self._num_groups * len(rows) <= MAX_MEMBERSHIP:
            every = torch.arange(self._num_groups, device=device)
            self._member = (self._group == every[:, None]).float()
        true = np.stack([np.bincount(group[span], minlength=len(groups)) for span in self._spans])
        self._true = torch.from_numpy(true.astype(np.float32)).to(device)[:, None]
        self._size = self._true.sum(0)
        self._kept: Tensor | None = None

    def __call__(self, parameters: Parameters) -> NDArray[np.float32]:
        """Return the (items, clients, splits, metrics) of parameters, a few items at a time."""
        items = next(iter(parameters.values())).shape[1]
        chunk = max(MAX_LOGITS // (self._num_classes * len(self._rows)), 1)
        parts = []
        for start in range(0, items, chunk):
            span = slice(start, start + chunk)
            parts.append(self._evaluate({name: v[:, span] for name, v in parameters.items()}))
        metrics = torch.cat(parts, dim=1)  # (metrics, items, groups)
        shape = (len(METRICS), items, self._num_groups // len(SPLITS), len(SPLITS))
        return metrics.reshape(shape).permute(1, 2, 3, 0).cpu().numpy()

    def _logits(self, parameters: Parameters) -> Tensor:
        """Return (classes, items, n) logits of all rows."""
        limit = self._model.rows_at_once
        if limit is None:
            if self._kept is None:
                self._kept = self._inputs[self._rows]
            return self._model.logits(parameters, self._kept)
        parts = [
            self._model.logits(parameters, self._inputs[rows])
            for rows in torch.split(self._rows, limit)
        ]
        return torch.cat(parts, dim=2)

    def _evaluate(self, parameters: Parameters) -> Tensor:
        logits = self._logits(parameters)
        top = torch.amax(logits, 0)
        true_logits = torch.cat([logits[j, :, span] for j, span in enumerate(self._spans)], dim=1)
        predicted = torch.eq(logits, top, out=torch.empty_like(logits))
        predicted_count = self._count_all(predicted)
        if not torch.equal(predicted_count.sum(0), self._size.expand_as(predicted_count[0])):
            predicted = predicted * (predicted.cumsum(0) == 1)  # the first of ties, as argmax
            predicted_count = self._count_all(predicted)
        hits = torch.stack(
            [self._count(predicted[label, :, span], span) for label, span in enumerate(self._spans)]
        )
        loss = self._model.losses(logits, top, true_logits)
        # Macro-F1 over the classes that occur among labels or predictions, as scikit-learn's.
        total = self._true + predicted_count
        f1 = sum_classes(2 * hits / total.clamp(min=1)) / (total > 0).sum(0).clamp(min=1)
        size = self._size.clamp(min=1)
        return torch.stack([self._add_up(loss) / size, hits.sum(0) / size, f1])

    def _add_up(self, values: Tensor) -> Tensor:
        """Sum (items, n) over the rows of each group, one after the other."""
        items, n = values.shape
        first = torch.arange(items, device=values.device)[:, None] * n
        sums: Tensor = torch.embedding_bag(
            values.reshape(-1, 1), (self._sorted + first).flatten(), (self._start + first).flatten()
        )[0]
        return sums.view(items, self._num_groups)

    def _count_all(self, values: Tensor) -> Tensor:
        return self._count(values.flatten(0, 1)).view(*values.shape[:2], -1)

    def _count(self, values: Tensor, span: slice = slice(None)) -> Tensor:
        """Return (items, groups) sums over the groups of (items, n) numbers 0 and 1."""
        if self._member is None:
            sums = values.new_zeros((len(values), self._num_groups))
            return sums.index_add_(1, self._group[span], values)
        return values @ self._member[:, span].t()


MAX_LAID_OUT = 2**26
"""Largest size of the inputs of minibatches that are laid out together."""
MAX_KEPT = 2**18
"""Largest number of minibatch rows whose layout is cached for the next round."""

BatchRows = tuple[Tensor, Tensor, Tensor, NDArray[np.int64]]
"""Inputs, targets, weights and sizes of the minibatches of one step."""


@dataclass(frozen=True, eq=False)
class _Portion:
    """The part of some steps that no random draw changes."""

    # Client and step of each minibatch.
    at: tuple[NDArray[np.int64], NDArray[np.int64]]
    where: Tensor | None  # (minibatches,) index of each item's minibatch; None: one each
    counts: list[int]  # items of each step
    weights: Sequence[Tensor]  # (items, width) weights of rows, by step
    sizes: Sequence[NDArray[np.int64]]  # (items,) rows that are not padding, by step


class Steps:
    """The local steps of items whose minibatches are equally wide, those with most steps first.

    Inputs of many steps are read together, and the layout, which no draw changes, is computed once
    for all rounds.
    """

    def __init__(self, prepared: TorchFederation, items: ClientBatch, device: torch.device) -> None:
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

    def batches(self, streams: Sequence[np.random.Generator]) -> Iterator[BatchRows]:
        """Yield inputs, targets, weights and sizes of the minibatches of each step."""
        layout_rows = self._layout.draw(streams)
        for portion in self._portions():
            rows = torch.from_numpy(layout_rows[portion.at]).to(self._device)
            x, targets = self._prepared.take(rows), self._prepared.targets(rows)
            if portion.where is not None:
                x = x.index_select(0, portion.where)
                targets = targets.index_select(1, portion.where)
            yield from zip(
                x.split_with_sizes(portion.counts),
                targets.split_with_sizes(portion.counts, 1),
                portion.weights,
                portion.sizes,
                strict=True,
            )

    def _portions(self) -> Iterable[_Portion]:
        """Return the steps in portions of at most `MAX_LAID_OUT`; small layouts are cached."""
        if self._kept is not None:
            return self._kept
        row = torch.zeros((1, 1, 1), dtype=torch.int64, device=self._device)
        per_item = math.prod(self._prepared.inputs[row].shape) * self._width
        portion = np.cumsum(self._active) * per_item // MAX_LAID_OUT
        parts = np.split(np.arange(len(portion)), np.flatnonzero(np.diff(portion)) + 1)
        portions = (self._portion(steps) for steps in parts if len(steps))
        if int(self._active.sum()) * self._width > MAX_KEPT:
            return portions
        self._kept = list(portions)
        return self._kept

    def _portion(self, steps: NDArray[np.int64]) -> _Portion:
        active = self._active[steps]
        step = np.repeat(steps, active)
        item = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
        at: tuple[NDArray[np.int64], ...] = step, self._column[item]
        where: Tensor | None = None
        sizes = self._layout.sizes[at]
        weights = row_weights(sizes, self._width)
        if len(self._column) > self._layout.sizes.shape[1]:  # read shared minibatches once
            shape = self._layout.sizes.shape
            places, index = np.unique(np.ravel_multi_index(at, shape), return_inverse=True)
            at, where = np.unravel_index(places, shape), torch.from_numpy(index).to(self._device)
        weight = torch.from_numpy(weights).to(self._device)
        counts = active.tolist()
        ends = itertools.accumulate(counts, initial=0)
        of_step = [sizes[start:end] for start, end in itertools.pairwise(ends)]
        return _Portion((at[1], at[0]), where, counts, torch.split(weight, counts), of_step)


MAX_PLANNED = 2**17
"""Size of the rates that are cached from round to round; large courses cache their first steps."""


@dataclass(frozen=True, eq=False, slots=True)
class StepSettings:
    """Hyperparameters of some items, (items,) each."""

    rate: Tensor  # learning rates
    decay: Tensor  # factors of the parameters
    others: Mapping[str, Tensor]  # values of the model's hyperparameters, by name
    pull: Tensor | None  # strength of the pull; None for none
    momentum: Tensor | None = None  # factor of the last move that a step repeats; None for none

    def of(self, span: slice) -> StepSettings:
        """Return the settings of some of the items."""
        others = {name: value[span] for name, value in self.others.items()}
        pull = None if self.pull is None else self.pull[span]
        momentum = None if self.momentum is None else self.momentum[span]
        return StepSettings(self.rate[span], self.decay[span], others, pull, momentum)


class StepPlan:
    """Steps and settings of the items of one width, which are `span` of all items."""

    def __init__(self, span: slice, steps: Steps, settings: StepSettings) -> None:
        self.span, self.steps = span, steps
        self._first = {len(steps.items): settings.of(span)}
        self._rates: list[Tensor] = []
        self._room = MAX_PLANNED

    def first(self, count: int) -> StepSettings:
        """Return the settings of the first items, which train longest."""
        if count not in self._first:
            self._first[count] = self._first[len(self.steps.items)].of(slice(count))
        return self._first[count]

    def rates(self, step: int, weights: Tensor, rate: Tensor) -> Tensor:
        """Return the (items, rows) products of the rows' weights and learning rates in a step."""
        if step < len(self._rates):
            return self._rates[step]
        rates = weights * rate[:, None]
        self._room -= rates.numel()
        if self._room >= 0:
            self._rates.append(rates)
        return rates


class Draws:
    """Random numbers of local training in one round, with one stream per client and round."""

    def __init__(self, names: StreamNames) -> None:
        self._names = names
        self._streams: dict[int, np.random.Generator] = {}

    def uniform(self, items: int, shape: tuple[int, ...]) -> Tensor:
        """Return (items, *shape) float32 from U[0, 1), on the CPU."""
        distinct, where = np.unique(self._names.distinct[1][:items], return_inverse=True)
        uniforms = np.empty((len(distinct), *shape), dtype=np.float32)
        for row, index in zip(uniforms, distinct.tolist(), strict=True):
            if index not in self._streams:
                keys = self._names.distinct[0][index]
                self._streams[index] = stream(self._names.seed, "local training", *keys)
            self._streams[index].random(dtype=np.float32, out=row)
        if not np.array_equal(where, np.arange(len(distinct))):
            uniforms = uniforms[where]
        return torch.from_numpy(uniforms)


class LocalTraining:
    """Runs the local steps of items of one group."""

    def __init__(self, prepared: TorchFederation, device: torch.device) -> None:
        self._prepared = prepared
        self._model = prepared.model
        self._device = device
        self._streams = ClientStreams(prepared.federation.num_clients)
        self._known: WeakKeyDictionary[ClientBatch, Sequence[tuple[slice, Steps]]] = (
            WeakKeyDictionary()
        )
        self._plans: WeakKeyDictionary[ClientBatch, tuple[Tensor, Sequence[StepPlan]]] = (
            WeakKeyDictionary()
        )

    def run(
        self,
        parameters: Parameters,
        items: ClientBatch,
        settings: Hyperparameters,
        names: StreamNames,
        terms: LocalObjective,
    ) -> None:
        """Train (k, items, ..) parameters in place, as described in `Trainer.run`."""
        plans = self._planned(items, settings, terms.pull)
        plan_names = [replace(names, drawers=plan.steps.items.drawers) for plan in plans]
        stream_keys = [
            (names.seed, *name) for plan_name in plan_names for name in plan_name.distinct[0]
        ]
        streams = iter(self._streams(stream_keys))
        for plan, plan_name in zip(plans, plan_names, strict=True):
            plan_streams = list(itertools.islice(streams, len(plan_name.distinct[0])))
            self._train(_of(parameters, plan.span), plan, Draws(plan_name), plan_streams, terms)

    def _planned(
        self, items: ClientBatch, settings: Hyperparameters, pull: Tensor | None
    ) -> Sequence[StepPlan]:
        """Return the plans of items by width, cached until learning rates change."""
        cached = self._plans.get(items)
        if cached is not None and cached[0] is settings.rate and pull is None:
            return cached[1]
        rows = torch.from_numpy(settings.rows(items)).to(self._device)
        rate, decay = settings.rate.index_select(0, rows), settings.decay.index_select(0, rows)
        momentum = None if settings.momentum is None else settings.momentum.index_select(0, rows)
        if pull is not None:
            pull = rate * pull
            decay = decay - pull
        others = settings.of_model(items)
        step_settings = StepSettings(rate, decay, others, pull, momentum)
        plans = [StepPlan(*span_and_steps, step_settings) for span_and_steps in self._parts(items)]
        if pull is None:
            self._plans[items] = settings.rate, plans
        return plans

    def _parts(self, items: ClientBatch) -> Sequence[tuple[slice, Steps]]:
        """Return the items by width, so that shapes of products do not depend on other items."""
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
        plan: StepPlan,
        draws: Draws,
        streams: Sequence[np.random.Generator],
        terms: LocalObjective,
    ) -> None:
        """Train items of one width."""
        anchor: Parameters = _of(terms.anchor or {}, plan.span)
        shift: Parameters = _of(terms.shift or {}, plan.span)
        shared: Mapping[str, SharedMatrix | SharedMatrices] = terms.shared or {}
        trained = [name for name in parameters if name not in self._model.buffers]
        active, count = parameters, len(plan.steps.items)
        now = plan.first(count)
        moves = None if now.momentum is None else Moves(parameters, trained)
        for step, (x, targets, weights, sizes) in enumerate(plan.steps.batches(streams)):
            if len(sizes) != count:
                count = len(sizes)
                active = {name: value[:, :count] for name, value in parameters.items()}
                now = plan.first(count)
            batch = Minibatch(
                x=x,
                targets=targets,
                rates=plan.rates(step, weights, now.rate),
                decay=now.decay,
                sizes=sizes,
                settings=now.others,
                uniform=partial(draws.uniform, count),
                shared=shared,
            )
            self._model.sgd_step(active, batch)
            if now.pull is not None:
                for name in trained:
                    active[name].addcmul_(fit(now.pull, active[name]), anchor[name][:, :count])
                for matrix in shared.values():
                    matrix.pull(now.pull)
            for name, added in shift.items():
                active[name].addcmul_(fit(now.rate, added), added[:, :count], value=-1.0)
            if now.momentum is not None and moves is not None:
                moves.repeat(active, now.momentum)
                for matrix in shared.values():
                    matrix.repeat(now.momentum)


class Moves:
    """The last moves of local steps for heavy-ball momentum (Polyak, 1964).

    w <- w - v with v <- momentum v + u, where u is the step without momentum.
    """

    def __init__(self, parameters: Parameters, names: Sequence[str]) -> None:
        self._before = {name: parameters[name].clone() for name in names}
        self._moved = {name: torch.zeros_like(parameters[name]) for name in names}

    def repeat(self, parameters: Parameters, momentum: Tensor) -> None:
        """Add a share of the last move of the first items to their parameters, in place."""
        count = len(momentum)
        for name, moves in self._moved.items():
            value, last = parameters[name], moves[:, :count]
            before = self._before[name][:, :count]
            value.addcmul_(fit(momentum, value), last)
            last.copy_(value - before)
            before.copy_(value)


def _of(parameters: Parameters, span: slice) -> Parameters:
    return {name: value[:, span] for name, value in parameters.items()}
