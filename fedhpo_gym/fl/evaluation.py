"""Loss, accuracy and macro-F1 of every client and split, for blocks of courses at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.models import Inputs, Model, Parameters
from fedhpo_gym.fl.models.base import sum_classes
from fedhpo_gym.schema import METRICS, SPLITS

MAX_LOGITS = 2**19


PACK = 24
"""Items of single courses whose sums are taken side by side."""
MAX_MEMBERSHIP = 2**24
"""Largest 0/1 matrix by which sums over a client's rows are products."""


class Evaluator:
    """Evaluates models on the data of some clients of a federation.

    Rows are sorted by label, so that everything that concerns the true label is a contiguous
    slice; sums over a client's split are products with a 0/1 matrix.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model,
        inputs: Inputs,
        device: torch.device,
        clients: Sequence[int] | None = None,
    ) -> None:
        """Lay the rows of some clients out; of all by default."""
        chosen = range(federation.num_clients) if clients is None else clients
        groups = [rows for client in chosen for rows in federation.clients[client]]
        rows = np.concatenate(groups)
        group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        order = np.argsort(federation.labels[rows], kind="stable")
        rows, group = rows[order], group[order]
        labels = federation.labels[rows]
        bounds = np.searchsorted(labels, np.arange(federation.num_classes + 1))
        true = np.stack(
            [
                np.bincount(group[labels == j], minlength=len(groups))
                for j in range(federation.num_classes)
            ]
        ).astype(np.float32)
        self._model = model
        self._inputs = inputs
        self._num_clients = len(chosen)
        self._num_classes = federation.num_classes
        self._spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        self._rows = torch.from_numpy(rows).to(device)
        self._group = torch.from_numpy(group).to(device)
        self._member: Tensor | None = None
        if len(groups) * len(rows) <= MAX_MEMBERSHIP:
            self._member = (
                self._group == torch.arange(len(groups), device=device)[:, None]
            ).float()
        self._true = torch.from_numpy(true).to(device)[:, None, :, None]
        sizes = np.bincount(group, minlength=len(groups)).astype(np.float32)
        self._size = torch.from_numpy(sizes).to(device)[:, None]
        self._kept: Tensor | None = None
        self._packed = False

    def __call__(self, parameters: Parameters) -> NDArray[np.float32]:
        """Return (items, slots, clients, splits, metrics) metrics, a few items at a time."""
        _, items, *_, slots = next(iter(parameters.values())).shape
        chunk = MAX_LOGITS // (self._num_classes * len(self._rows) * slots)
        # Products over fewer columns than a pack would be rounded differently with other items
        # beside; a single one is as good.
        self._packed = slots == 1 and chunk >= PACK
        chunk = chunk if slots > 1 or self._packed else 1
        chunk = max(chunk, 1)
        parts = []
        for start in range(0, items, chunk):
            part = {name: value[:, start : start + chunk] for name, value in parameters.items()}
            parts.append(self._evaluate(part))
        metrics = torch.cat(parts, dim=1)  # (metrics, items, groups, slots)
        shape = (len(METRICS), items, self._num_clients, len(SPLITS), slots)
        return metrics.reshape(shape).permute(1, 4, 2, 3, 0).cpu().numpy()

    def _logits(self, parameters: Parameters) -> Tensor:
        """Return (classes, items, n, slots) logits of all rows."""
        limit = self._model.rows_at_once
        if limit is None:
            if self._kept is None:
                self._kept = self._inputs[self._rows]
            return self._model.logits(parameters, self._kept)
        parts = [
            self._model.logits(parameters, self._inputs[r]) for r in torch.split(self._rows, limit)
        ]
        return torch.cat(parts, dim=2)

    def _evaluate(self, parameters: Parameters) -> Tensor:
        logits = self._logits(parameters)
        top = torch.amax(logits, 0)
        own = self._of_true_label(logits)
        predicted = torch.eq(logits, top, out=torch.empty_like(logits))
        predicted_count = self._sum(predicted)
        if not torch.equal(predicted_count.sum(0), self._size.expand_as(predicted_count[0])):
            predicted = _first_of_ties(predicted)
            predicted_count = self._sum(predicted)
        hits = torch.stack(
            [
                self._sum_rows(predicted[label, :, span], span)
                for label, span in enumerate(self._spans)
            ]
        )
        loss = self._model.losses(logits, top, own)
        return torch.stack(
            [
                self._sum_rows(loss) / self._size.clamp(min=1),
                hits.sum(0) / self._size.clamp(min=1),
                _macro_f1(hits, self._true, predicted_count),
            ]
        )

    def _of_true_label(self, logits: Tensor) -> Tensor:
        return torch.cat([logits[j, :, span] for j, span in enumerate(self._spans)], dim=1)

    def _sum(self, values: Tensor) -> Tensor:
        sums = self._sum_rows(values.flatten(0, 1))
        return sums.view(*values.shape[:2], *sums.shape[1:])

    def _sum_rows(self, values: Tensor, span: slice = slice(None)) -> Tensor:
        """Sum (items, n, slots) over the rows of each group: (items, groups, slots)."""
        if self._member is not None:
            return self._multiply(self._member[:, span], values)
        sums = values.new_zeros((len(values), len(self._size), values.shape[2]))
        return sums.index_add_(1, self._group[span], values)

    def _multiply(self, member: Tensor, values: Tensor) -> Tensor:
        """Multiply (groups, n) by each of (items, n, slots), in products of fixed width."""
        items, n, _ = values.shape
        if not self._packed:
            return torch.bmm(member.expand(items, *member.shape), values)
        packs = -(-items // PACK)
        padded = values.new_zeros((packs * PACK, n))
        padded[:items] = values[..., 0]
        columns = padded.view(packs, PACK, n).transpose(1, 2).contiguous()
        sums = torch.bmm(member.expand(packs, *member.shape), columns)
        return sums.transpose(1, 2).reshape(packs * PACK, -1)[:items, :, None]


def _first_of_ties(predicted: Tensor) -> Tensor:
    """Keep the first of several tied classes, as argmax does."""
    return predicted * (predicted.cumsum(0) == 1)


def _macro_f1(hits: Tensor, true: Tensor, predicted: Tensor) -> Tensor:
    """Macro-F1 over the classes that occur among labels or predictions, as scikit-learn's."""
    total = true + predicted
    f1 = 2 * hits / total.clamp(min=1)
    return sum_classes(f1) / (total > 0).sum(0).clamp(min=1)
