"""Multinomial logistic regression: one linear layer, on dense and on sparse rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.datasets.records import Features, SparseRows
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.models.base import Minibatch, Model, Parameters, softmax_residual_


class LogisticRegression(Model):
    """A linear layer with bias, trained on the cross-entropy.

    The bias is one more weight on a constant input of one; weight decay applies to it too, as in
    `torch.optim.SGD`. Parameters: `weight` (classes, items, inputs + 1, slots).
    """

    # The learning rates times weight decays of the paper's grid (Table 8), so that a table wastes
    # no slot, and a multiple of every vector width.
    slots: ClassVar[int] = 24

    def __init__(self, num_inputs: int, num_classes: int, device: torch.device) -> None:
        """Create the model for `num_inputs` features."""
        self.num_inputs = num_inputs
        self.num_classes = num_classes
        self.num_parameters = (num_inputs + 1) * num_classes
        self.device = device

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> LogisticRegression:
        """See `Model.for_federation`."""
        del shape
        sparse = isinstance(federation.features, SparseRows)
        kind = SparseLogisticRegression if sparse else cls
        return kind(federation.features.shape[1], federation.num_classes, device)

    @classmethod
    def stacks(cls, federation: Federation) -> bool:
        """Dense rows can be laid end to end."""
        return not isinstance(federation.features, SparseRows)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw from U(-1/sqrt(d), 1/sqrt(d)), the default of `torch.nn.Linear`."""
        bound = 1.0 / np.sqrt(self.num_inputs)
        size = (self.num_classes, self.num_inputs + 1)
        return {"weight": rng.uniform(-bound, bound, size).astype(np.float32)}

    def inputs(self, features: Features) -> Tensor:
        """Append the constant input."""
        features = features[np.arange(len(features))]
        ones = np.ones((len(features), 1), dtype=np.float32)
        return torch.from_numpy(np.hstack([features, ones])).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """See `Model.sgd_step`."""
        weight = parameters["weight"]
        residual = softmax_residual_(self.affine(weight, batch.x), batch.targets, batch.rates)
        self.descend(weight, residual, batch)

    def affine(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the (classes, items, rows, slots) products of weights and inputs."""
        return _logits(weight, x)

    def descend(self, weight: Tensor, residual: Tensor, batch: Minibatch) -> None:
        """Take the step of learning rate x d(mean loss)/d(products)."""
        weight.mul_(batch.decay)
        x = batch.x.transpose(1, 2)
        for own, of_label in zip(weight.unbind(0), residual.unbind(0), strict=True):
            own.baddbmm_(x, of_label, alpha=-1.0)

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        weight = parameters["weight"]
        return _logits(weight, x if x.ndim > 2 else x.expand(weight.shape[1], *x.shape))


class SparseLogisticRegression(LogisticRegression):
    """The same model and parameters; products touch the columns that a row has.

    A row is (2, k) numbers: the columns of its k stored values, then the values. Shorter rows are
    padded with zeros in column 0, which change no sum; the constant input is one more column.
    Columns are exact as float32 up to 2^24.
    """

    def inputs(self, features: Features) -> Tensor:
        """Append the constant input and pad rows to the longest."""
        if not isinstance(features, SparseRows):
            raise TypeError(f"features must be SparseRows, got {type(features).__name__}")
        counts = np.diff(features.indptr)
        padded = np.zeros((len(features), 2, int(counts.max()) + 1), dtype=np.float32)
        row = np.repeat(np.arange(len(features)), counts)
        place = np.arange(len(row)) - np.repeat(features.indptr[:-1], counts)
        padded[row, 0, place], padded[row, 1, place] = features.indices, features.values
        padded[np.arange(len(features)), 0, counts] = self.num_inputs
        padded[np.arange(len(features)), 1, counts] = 1.0
        return torch.from_numpy(padded).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """See `Model.sgd_step`."""
        weight = parameters["weight"]
        _, items, columns, slots = weight.shape
        column, value = batch.x[:, :, 0].long(), batch.x[:, :, 1]
        column += torch.arange(items, device=weight.device)[:, None, None] * columns
        residual = softmax_residual_(_products(weight, column, value), batch.targets, batch.rates)
        weight.mul_(batch.decay)
        # What is padding adds nothing, so only stored values are added; in a fixed order per item.
        item, row, place = torch.nonzero(
            value * (batch.rates.amax(2) > 0)[..., None], as_tuple=True
        )
        target, factor = column[item, row, place], -value[item, row, place, None]
        for label in range(self.num_classes):
            flat = weight[label].view(-1, slots)
            flat.index_add_(0, target, factor * residual[label, item, row])

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        weight = parameters["weight"]
        classes, items, _, slots = weight.shape
        column, value = x[:, 0].long(), x[:, 1].contiguous()
        out = torch.empty((classes, items, len(x), slots), device=weight.device)
        for label in range(classes):
            for item in range(items):
                out[label, item] = _bags(weight[label, item], column, value)
        return out


def _logits(weight: Tensor, x: Tensor) -> Tensor:
    classes, items, _, slots = weight.shape
    out = torch.empty((classes, items, x.shape[1], slots), device=weight.device)
    # One product per class keeps the shape of each product, and so its rounding, independent of
    # how many items are trained together; inputs are shared by the classes without a copy.
    for own, of_label in zip(weight.unbind(0), out.unbind(0), strict=True):
        torch.bmm(x, own, out=of_label)
    return out


def _products(weight: Tensor, column: Tensor, value: Tensor) -> Tensor:
    """Return (classes, items, rows, slots) logits of rows (items, rows, k) of each item's own."""
    items, rows, k = column.shape
    flat, value = column.view(-1, k), value.reshape(-1, k)
    slots = weight.shape[3]
    parts = [_bags(one.reshape(-1, slots), flat, value) for one in weight]
    return torch.stack(parts).view(len(weight), items, rows, slots)


def _bags(table: Tensor, column: Tensor, value: Tensor) -> Tensor:
    """Return the (n, slots) sums of rows `column` (n, k) of a table, times `value` (n, k)."""
    return functional.embedding_bag(column, table, per_sample_weights=value, mode="sum")
