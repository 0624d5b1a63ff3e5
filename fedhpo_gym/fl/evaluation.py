"""Loss, accuracy and macro-F1 of every client and split, for blocks of courses at once."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.models import Model, Parameters
from fedhpo_gym.schema import METRICS, SPLITS

MAX_LOGITS = 2**19


class Evaluator:
    """Evaluates models on all data of a federation.

    Rows are sorted by label, so that everything that concerns the true label is a contiguous
    slice; sums over a client's split are products with a 0/1 matrix.
    """

    def __init__(self, federation: Federation, model: Model, device: torch.device) -> None:
        """Lay the rows of a federation out."""
        groups = [rows for client in federation.clients for rows in client]
        rows = np.concatenate(groups)
        group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        order = np.argsort(federation.labels[rows], kind="stable")
        rows, group = rows[order], group[order]
        labels = federation.labels[rows]
        bounds = np.searchsorted(labels, np.arange(federation.num_classes + 1))
        member = (group == np.arange(len(groups))[:, None]).astype(np.float32)
        true = np.stack([member[:, labels == j].sum(1) for j in range(federation.num_classes)])
        self._model = model
        self._federation = federation
        self._spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        self._x = model.inputs(federation.features[rows])
        self._member = torch.from_numpy(member).to(device)
        self._true = torch.from_numpy(true).to(device)[:, None, :, None]
        self._size = self._member.sum(1)[:, None]

    def __call__(self, parameters: Parameters) -> NDArray[np.float32]:
        """Return (items, slots, clients, splits, metrics) metrics, a few items at a time."""
        items = next(iter(parameters.values())).shape[1]
        slots = next(iter(parameters.values())).shape[-1]
        classes = self._federation.num_classes
        chunk = max(1, MAX_LOGITS // (classes * len(self._x) * slots))
        parts = []
        for start in range(0, items, chunk):
            part = {name: value[:, start : start + chunk] for name, value in parameters.items()}
            parts.append(self._evaluate(part))
        metrics = torch.cat(parts, dim=1)  # (metrics, items, groups, slots)
        shape = (len(METRICS), items, self._federation.num_clients, len(SPLITS), slots)
        return metrics.reshape(shape).permute(1, 4, 2, 3, 0).cpu().numpy()

    def _evaluate(self, parameters: Parameters) -> Tensor:
        logits = self._model.logits(parameters, self._x)  # (classes, items, n, slots)
        top = torch.amax(logits, 0)
        own = self._of_true_label(logits)
        predicted = torch.eq(logits, top, out=torch.empty_like(logits))
        predicted_count = self._sum(predicted)
        if not torch.equal(predicted_count.sum(0), self._size.expand_as(predicted_count[0])):
            predicted = _first_of_ties(predicted)
            predicted_count = self._sum(predicted)
        hits = torch.stack(
            [
                _sum_rows(self._member[:, span], predicted[label, :, span])
                for label, span in enumerate(self._spans)
            ]
        )
        loss = logits.sub_(top).clamp_(min=-60.0).exp_().sum(0).log_().add_(top).sub_(own)
        return torch.stack(
            [
                _sum_rows(self._member, loss) / self._size,
                hits.sum(0) / self._size,
                _macro_f1(hits, self._true, predicted_count),
            ]
        )

    def _of_true_label(self, logits: Tensor) -> Tensor:
        return torch.cat([logits[j, :, span] for j, span in enumerate(self._spans)], dim=1)

    def _sum(self, values: Tensor) -> Tensor:
        sums = _sum_rows(self._member, values.flatten(0, 1))
        return sums.view(*values.shape[:2], *sums.shape[1:])


def _sum_rows(member: Tensor, values: Tensor) -> Tensor:
    """Sum (items, n, slots) over the rows of each group: (items, groups, slots)."""
    return torch.bmm(member.expand(len(values), *member.shape), values)


def _first_of_ties(predicted: Tensor) -> Tensor:
    """Keep the first of several tied classes, as argmax does."""
    return predicted * (predicted.cumsum(0) == 1)


def _macro_f1(hits: Tensor, true: Tensor, predicted: Tensor) -> Tensor:
    """Macro-F1 over the classes that occur among labels or predictions, as scikit-learn's."""
    total = true + predicted
    f1 = 2 * hits / total.clamp(min=1)
    return f1.sum(0) / (total > 0).sum(0)
