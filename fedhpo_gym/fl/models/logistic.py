"""Multinomial logistic regression: one linear layer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.datasets.records import Features
from fedhpo_gym.fl.federation import Federation
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
        return cls(federation.features.shape[1], federation.num_classes, device)

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
        residual = softmax_residual_(_logits(weight, batch.x), batch)
        weight.mul_(batch.decay)
        x = batch.x.transpose(1, 2)
        for label in range(self.num_classes):
            weight[label].baddbmm_(x, residual[label], alpha=-1.0)

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        weight = parameters["weight"]
        return _logits(weight, x.expand(weight.shape[1], *x.shape))


def _logits(weight: Tensor, x: Tensor) -> Tensor:
    classes, items, _, slots = weight.shape
    out = torch.empty((classes, items, x.shape[1], slots), device=weight.device)
    # One product per class keeps the shape of each product, and so its rounding, independent of
    # how many items are trained together; inputs are shared by the classes without a copy.
    for label in range(classes):
        torch.bmm(x, weight[label], out=out[label])
    return out
