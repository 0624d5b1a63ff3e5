"""What the engine asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Parameters = dict[str, Tensor]
"""Named tensors of shape (model's own, items, ..., slots): the second axis counts the items trained
together (a block of courses, or a block on one client), the last the courses of a block."""


class Model(ABC):
    """A model that trains blocks of courses.

    An item is one block of `slots` courses on one client: all its courses see the same minibatch,
    each with its own parameters and hyperparameters.
    """

    num_parameters: int

    @abstractmethod
    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw the initial parameters of one course: as `Parameters`, without items and slots."""

    @abstractmethod
    def inputs(self, features: NDArray[np.float32]) -> Tensor:
        """Prepare (n, d) features once: the rows that `sgd_step` and `logits` take."""

    @abstractmethod
    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """Take one SGD step with weight decay on the mean cross-entropy, in place."""

    @abstractmethod
    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Return (classes, items, n, slots) logits of rows x (n, ...), the same for every item."""


@dataclass(frozen=True, eq=False, slots=True)
class Minibatch:
    """One minibatch per item.

    Attributes:
        x: (items, rows, ...) inputs.
        targets: (classes, items, rows, 1) one-hot labels.
        rates: (items, rows, slots) learning rate / minibatch size; 0 for padded rows.
        decay: (items, 1, slots) factor 1 - learning rate x weight decay.
    """

    x: Tensor
    targets: Tensor
    rates: Tensor
    decay: Tensor


def softmax_residual_(logits: Tensor, batch: Minibatch) -> Tensor:
    """Turn (classes, items, rows, slots) logits into learning rate x d(mean loss)/d(logits).

    In place. The gradient of the mean cross-entropy is (softmax - one-hot) / minibatch size; the
    step sizes are folded into the softmax's own division. Logits far below the largest are
    clamped: their exponentials are denormal, ten times as slow, and vanish in the sum anyway.
    """
    logits.sub_(torch.amax(logits, 0)).clamp_(min=-60.0).exp_()
    logits.mul_(batch.rates / logits.sum(0))
    return logits.addcmul_(batch.targets, batch.rates, value=-1.0)
