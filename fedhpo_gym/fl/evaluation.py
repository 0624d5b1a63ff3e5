"""Loss, accuracy and macro-F1 of every client and split, for blocks of courses at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl import stack as stacking
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import sum_classes
from fedhpo_gym.fl.stack import Stack

MAX_LOGITS = 2**19
PACK = 24
"""Items of single courses whose counts are taken side by side."""


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows of some clients of a federation, sorted by label; a group is a client's split.

    Attributes:
        index: (n,) rows.
        group: (n,) group of each row.
        bounds: (classes + 1,) where the rows of each label begin, and where the last end.
        true: (classes, groups) float32, rows of each label.
    """

    index: NDArray[np.int64]
    group: NDArray[np.int64]
    bounds: NDArray[np.int64]
    true: NDArray[np.float32]


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
    """Evaluates models on the data of some clients of one federation, or of several.

    Rows are sorted by label, so that everything that concerns the true label is a contiguous
    slice. Counts over a client's split are products with a 0/1 matrix, which are exact in any
    order; losses are added row after row, so no library's order of summation and no neighbour
    decides a bit. Several federations have the same number of rows of every label.
    """

    def __init__(self, stack: Stack, rows: Sequence[SplitRows], device: torch.device) -> None:
        """Evaluate on some rows of each federation of a stack."""
        self._model = stack.model
        self._inputs = stack.inputs
        self._num_classes, self._num_groups = rows[0].true.shape
        self._spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(rows[0].bounds)]
        index = [r.index + first for r, first in zip(rows, stack.first_row, strict=True)]
        self._rows = torch.from_numpy(np.stack(index)).to(device)
        group = np.stack([r.group for r in rows])
        self._group = torch.from_numpy(group).to(device)
        self._sorted = torch.from_numpy(np.argsort(group, axis=1, kind="stable")).to(device)
        counts = np.stack([np.bincount(row, minlength=self._num_groups) for row in group])
        self._start = torch.from_numpy(np.cumsum(counts, axis=1) - counts).to(device)
        self._member: Tensor | None = None
        if self._num_groups * self._rows.shape[1] <= stacking.MAX_MEMBERSHIP:
            groups = torch.arange(self._num_groups, device=device)
            self._member = (self._group[:, None] == groups[:, None]).float()
        true = torch.from_numpy(np.stack([r.true for r in rows], axis=1)).to(device)
        self._true = true[..., None]
        self._size = true.sum(0)[..., None]
        self._kept: Tensor | None = None
        self._packed = False
        # What items that share the only federation are evaluated on: nothing is copied.
        only = torch.zeros(1, dtype=torch.int64, device=device)
        self._only = _Chosen(only, self._member, self._true, self._size)

    def __call__(
        self, parameters: Parameters, federations: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return (items, slots, clients, splits, metrics) metrics, a few items at a time.

        Args:
            parameters: parameters of the items.
            federations: (items,) federation of each; None for items that share the only one.
        """
        _, items, *_, slots = next(iter(parameters.values())).shape
        chunk = MAX_LOGITS // (self._num_classes * self._rows.shape[1] * slots)
        self._packed = slots == 1 and chunk >= PACK
        chunk = max(chunk if slots > 1 or self._packed else 1, 1)
        parts = []
        for start in range(0, items, chunk):
            span = slice(start, start + chunk)
            part = {name: value[:, span] for name, value in parameters.items()}
            which = None if federations is None else federations[span]
            parts.append(self._evaluate(part, self._choose(which)))
        metrics = torch.cat(parts, dim=1)  # (metrics, items, groups, slots)
        clients = self._num_groups // len(SPLITS)
        shape = (len(METRICS), items, clients, len(SPLITS), slots)
        return metrics.reshape(shape).permute(1, 4, 2, 3, 0).cpu().numpy()

    def _choose(self, federations: NDArray[np.int64] | None) -> _Chosen:
        """Return what items are evaluated on; the first axis is 1 where they share it."""
        if federations is None:
            return self._only
        index = torch.from_numpy(federations).to(self._rows.device)
        member = None if self._member is None else self._member[index]
        return _Chosen(index, member, self._true[:, index], self._size[index])

    def _logits(self, parameters: Parameters, index: Tensor) -> Tensor:
        """Return (classes, items, n, slots) logits of all rows."""
        limit = self._model.rows_at_once
        if limit is None:
            if self._kept is None:
                self._kept = self._inputs[self._rows]
            x = self._kept[index] if len(self._kept) > 1 else self._kept[0]
            return self._model.logits(parameters, x)
        parts = [
            self._model.logits(parameters, self._inputs[rows])
            for rows in torch.split(self._rows[0], limit)
        ]
        return torch.cat(parts, dim=2)

    def _evaluate(self, parameters: Parameters, chosen: _Chosen) -> Tensor:
        logits = self._logits(parameters, chosen.index)
        size, member = chosen.size, chosen.member
        top = torch.amax(logits, 0)
        own = self._of_true_label(logits)
        predicted = torch.eq(logits, top, out=torch.empty_like(logits))
        predicted_count = self._sum(predicted, member)
        if not torch.equal(predicted_count.sum(0), size.expand_as(predicted_count[0])):
            predicted = _first_of_ties(predicted)
            predicted_count = self._sum(predicted, member)
        hits = torch.stack(
            [
                self._sum_rows(predicted[label, :, span], member, span)
                for label, span in enumerate(self._spans)
            ]
        )
        loss = self._model.losses(logits, top, own)
        return torch.stack(
            [
                self._add_up(loss, chosen.index) / size.clamp(min=1),
                hits.sum(0) / size.clamp(min=1),
                _macro_f1(hits, chosen.true, predicted_count),
            ]
        )

    def _of_true_label(self, logits: Tensor) -> Tensor:
        return torch.cat([logits[j, :, span] for j, span in enumerate(self._spans)], dim=1)

    def _add_up(self, values: Tensor, index: Tensor) -> Tensor:
        """Sum (items, n, slots) over the rows of each group, one after the other."""
        items, n, slots = values.shape
        first = torch.arange(items, device=values.device)[:, None] * n
        sums: Tensor = torch.embedding_bag(
            values.reshape(items * n, slots),
            (self._sorted[index] + first).flatten(),
            (self._start[index] + first).flatten(),
        )[0]
        return sums.view(items, self._num_groups, slots)

    def _sum(self, values: Tensor, member: Tensor | None) -> Tensor:
        sums = self._sum_rows(values.flatten(0, 1), member)
        return sums.view(*values.shape[:2], *sums.shape[1:])

    def _sum_rows(self, values: Tensor, member: Tensor | None, span: slice = slice(None)) -> Tensor:
        """Count in (items, n, slots) numbers 0 and 1: (items, groups, slots) sums of each group."""
        if member is not None:
            return self._multiply(member[:, :, span], values)
        # A federation whose matrix would be too large is the only one here, see `stack.shapes`.
        sums = values.new_zeros((len(values), self._num_groups, values.shape[2]))
        return sums.index_add_(1, self._group[0, span], values)

    def _multiply(self, member: Tensor, values: Tensor) -> Tensor:
        """Multiply (groups, n) by each of (items, n, slots), in products of one width."""
        items, n, _ = values.shape
        if not self._packed:
            return torch.bmm(_repeated(member, items), values)
        packs = -(-items // PACK)
        padded = values.new_zeros((packs * PACK, n))
        padded[:items] = values[..., 0]
        columns = padded.view(packs, PACK, n).transpose(1, 2).contiguous()
        sums = torch.bmm(_repeated(member, packs), columns)
        return sums.transpose(1, 2).reshape(packs * PACK, -1)[:items, :, None]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What some items are evaluated on.

    Attributes:
        index: (m,) federations; m is the number of items, or 1.
        member: (m, groups, n) 0/1 matrices; None where they would be too large.
        true: (classes, m, groups, 1) rows of each label.
        size: (m, groups, 1) rows.
    """

    index: Tensor
    member: Tensor | None
    true: Tensor
    size: Tensor


def _repeated(matrices: Tensor, number: int) -> Tensor:
    """Repeat the sequence of (m, ..) matrices until there are as many as asked for."""
    if len(matrices) in (1, number):
        return matrices.expand(number, *matrices.shape[1:])
    return matrices.repeat(number // len(matrices), 1, 1)


def _first_of_ties(predicted: Tensor) -> Tensor:
    """Keep the first of several tied classes, as argmax does."""
    return predicted * (predicted.cumsum(0) == 1)


def _macro_f1(hits: Tensor, true: Tensor, predicted: Tensor) -> Tensor:
    """Macro-F1 over the classes that occur among labels or predictions, as scikit-learn's."""
    total = true + predicted
    f1 = 2 * hits / total.clamp(min=1)
    return sum_classes(f1) / (total > 0).sum(0).clamp(min=1)
