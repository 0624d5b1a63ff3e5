"""What torch trains: a model, and a federation as the model reads it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.algorithms.base import fit as fit
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.fl.shared_matrices import Matrices, Matrix

Parameters = dict[str, Tensor]
"""Named tensors of shape (model's own, items, ...): the second axis counts what is trained
together, which is courses, or courses on single clients."""


class TorchModel(Model):
    """A model that torch trains: an item is a course on one client."""

    rows_at_once: ClassVar[int | None] = None  # rows that are evaluated together; None for all
    # (1, items, out, in) matrices that `Minibatch.shared` may hold.
    shareable: frozenset[str] = frozenset()
    precision: str = "float32"  # the type of numbers it computes in; parameters are float32 in any
    # whether a step is of all items, as on graphics cards; `shared` then holds `Matrices`.
    together: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What `precision` is to torch."""
        torch_dtype: torch.dtype = getattr(torch, self.precision)
        return torch_dtype

    @classmethod
    @abstractmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> TorchModel:
        """Create the model that fits a federation's data; `shape` holds the architecture."""

    @abstractmethod
    def inputs(self, features: Features) -> Tensor:
        """Prepare (n, ...) features once: what `sgd_step` and `logits` take, by rows."""

    @abstractmethod
    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """Take one SGD step with weight decay on the mean cross-entropy, in place."""

    @abstractmethod
    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Return (classes, items, n) logits of rows x (n, ...), the same for every item."""

    def losses(self, logits: Tensor, top: Tensor, true_logits: Tensor) -> Tensor:
        """Return the (items, n) losses of rows: their cross-entropy, unless overridden.

        Logits far below the largest are clamped: their exponentials are denormal, ten times as
        slow, and vanish in the sum anyway.
        """
        total = sum_classes(logits.sub_(top).clamp_(min=-60.0).exp_())
        return total.log_().add_(top).sub_(true_logits)


@dataclass(frozen=True, eq=False, slots=True)
class Minibatch:
    """One minibatch per item."""

    x: Tensor  # (items, rows, ...) inputs
    targets: Tensor  # (classes, items, rows) one-hot labels
    rates: Tensor  # (items, rows) learning rate / minibatch size; 0 for padded rows
    decay: Tensor  # (items,) factor 1 - learning rate x weight decay
    sizes: NDArray[np.int64]  # (items,) rows that are not padding; they come first
    settings: Mapping[str, Tensor]  # (items,) values of the model's `hyperparameters`, by name
    # (items, *shape) from U[0, 1) by the seed, on the processor.
    uniform: Callable[[tuple[int, ...]], Tensor]
    shared: Mapping[str, Matrix | Matrices]  # matrices that clients share, not among the parameters


def sum_classes(values: Tensor) -> Tensor:
    """Sum (classes, ...) over the classes, one after the other.

    torch adds up the columns that do not fill four vectors in another order than the rest, and more
    than 15 rows in portions: a number would depend on how many others stand beside it.
    """
    first, *others = values.unbind(0)
    if len(others) == 1:  # faster than `sum`, and the only order there is
        return first + others[0]
    if len(others) < 15 and first.numel() % 64 == 0 and values.is_contiguous():
        return values.sum(0)
    total = first.clone()
    for row in others:
        total += row
    return total


class TorchFederation:
    """A federation on a device, as a model of some architecture and precision reads it."""

    def __init__(
        self,
        federation: Federation,
        model: type[TorchModel],
        architecture: Iterable[tuple[str, float]],
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.federation = federation
        self.model = model.for_federation(federation, device, **dict(architecture))
        self.model.precision = precision
        self.inputs = self.model.inputs(federation.features)
        self._labels = torch.from_numpy(federation.labels.astype(np.int64)).to(device)
        self._one_hot = torch.eye(federation.num_classes, device=device)

    @cached_property
    def initial(self) -> dict[str, NDArray[np.float32]]:
        """Parameters of every course of the seed before its first round."""
        return self.model.init(stream(self.federation.seed, "init"))

    def take(self, rows: Tensor) -> Tensor:
        """Return the inputs of some rows: the shape of `rows`, then the shape of one input."""
        selected = self.inputs.index_select(0, rows.flatten())  # several times as fast as indexing
        return selected.view(*rows.shape, *self.inputs.shape[1:])

    def targets(self, rows: Tensor) -> Tensor:
        """Return the one-hot labels (classes, *rows.shape) of some rows, float32."""
        labels = self._labels.index_select(0, rows.flatten())
        return self._one_hot.index_select(1, labels).view(-1, *rows.shape)
