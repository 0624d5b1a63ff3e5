"""Loss, accuracy and macro-F1 of every client and split, for several courses at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.torch_model import TorchFederation, sum_classes

MAX_LOGITS = 2**19
"""Logits that are computed at once, unless a single course has more."""
MAX_MEMBERSHIP = 2**24
"""Numbers that a 0/1 matrix holds at most by which sums over a client's rows are products; a
federation that needs more is summed row by row."""


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows of some clients of a federation, sorted by label; a group is a client's split."""

    index: NDArray[np.int64]  # (n,) rows
    group: NDArray[np.int64]  # (n,) group of each row
    bounds: NDArray[np.int64]  # (classes + 1,) where the rows of each label begin, then the end
    true: NDArray[np.float32]  # (classes, groups) float32, rows of each label


def lay_out(federation: Federation, clients: Sequence[int] | None = None) -> SplitRows:
    """Sort the rows of some clients; of all by default."""
    chosen = range(federation.num_clients) if clients is None else clients
    groups = [rows for client in chosen for rows in federation.clients[client]]
    rows = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    order = np.argsort(federation.labels[rows], kind="stable")
    rows, group = rows[order], group[order]
    labels = federation.labels[rows]
    bounds = np.searchsorted(labels, np.arange(federation.num_classes + 1))
    true = [np.bincount(group[a:b], minlength=len(groups)) for a, b in itertools.pairwise(bounds)]
    return SplitRows(rows, group, bounds, np.stack(true).astype(np.float32))


class Evaluator:
    """Evaluates models on the data of some clients of a federation.

    Rows are sorted by label, so that everything that concerns the true label is a contiguous slice.
    Counts over a client's split are products with a 0/1 matrix, which are exact in any order;
    losses are added row after row, so no library's order of summation and no neighbour decides a
    bit.
    """

    def __init__(self, prepared: TorchFederation, rows: SplitRows, device: torch.device) -> None:
        self._model = prepared.model
        self._inputs = prepared.inputs
        self._num_classes, self._num_groups = rows.true.shape
        self._spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(rows.bounds)]
        self._rows = torch.from_numpy(rows.index).to(device)
        self._group = torch.from_numpy(rows.group).to(device)
        self._sorted = torch.from_numpy(np.argsort(rows.group, kind="stable")).to(device)
        counts = np.bincount(rows.group, minlength=self._num_groups)
        self._start = torch.from_numpy(np.cumsum(counts) - counts).to(device)
        self._member: Tensor | None = None
        if self._num_groups * len(rows.index) <= MAX_MEMBERSHIP:
            groups = torch.arange(self._num_groups, device=device)
            self._member = (self._group == groups[:, None]).float()
        self._true = torch.from_numpy(rows.true).to(device)[:, None]
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
        own = torch.cat([logits[j, :, span] for j, span in enumerate(self._spans)], dim=1)
        predicted = torch.eq(logits, top, out=torch.empty_like(logits))
        predicted_count = self._count_all(predicted)
        if not torch.equal(predicted_count.sum(0), self._size.expand_as(predicted_count[0])):
            predicted = _first_of_ties(predicted)
            predicted_count = self._count_all(predicted)
        hits = torch.stack(
            [self._count(predicted[label, :, span], span) for label, span in enumerate(self._spans)]
        )
        loss = self._model.losses(logits, top, own)
        return torch.stack(
            [
                self._add_up(loss) / self._size.clamp(min=1),
                hits.sum(0) / self._size.clamp(min=1),
                _macro_f1(hits, self._true, predicted_count),
            ]
        )

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
        """Count in (items, n) numbers 0 and 1: the (items, groups) sums of each group."""
        if self._member is None:
            sums = values.new_zeros((len(values), self._num_groups))
            return sums.index_add_(1, self._group[span], values)
        return values @ self._member[:, span].t()


def _first_of_ties(predicted: Tensor) -> Tensor:
    """Keep the first of several tied classes, as argmax does."""
    return predicted * (predicted.cumsum(0) == 1)


def _macro_f1(hits: Tensor, true: Tensor, predicted: Tensor) -> Tensor:
    """Macro-F1 over the classes that occur among labels or predictions, as scikit-learn's."""
    total = true + predicted
    f1 = 2 * hits / total.clamp(min=1)
    return sum_classes(f1) / (total > 0).sum(0).clamp(min=1)
