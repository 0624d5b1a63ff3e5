"""One step of stochastic gradient descent of the convolutional network, written out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhpo_gym.fl.models.base import Parameters
from fedhpo_gym.fl.models.convolution import Layer, rows
from fedhpo_gym.fl.shared import Matrix, subtract_product

MAX_NORM = 5.0
"""Gradients longer than this are shortened to it, as in the original runs, unless configured."""

_aten: Any = torch.ops.aten


@dataclass(eq=False)
class Step:
    """A step of one item on one minibatch, but for the products with the large layer.

    Everything backward is multiplied by the learning rate, see `Minibatch.rates`.

    Attributes:
        own: parameters of the item, updated in place; those of the large layer are not read.
        layers: the convolutional layers, reading the same parameters.
        images: (n, channels, height, width).
        targets: (n, classes) one-hot labels.
        rates: (n, 1) learning rate / n.
        decay: factor of the weights.
        mask: (n, flat + hidden) factors of dropout; None for none.
        clip_norm: length of the longest gradient that is not shortened to it.
    """

    own: Parameters
    layers: tuple[Layer, Layer]
    images: Tensor
    targets: Tensor
    rates: Tensor
    decay: float
    mask: Tensor | None
    clip_norm: float

    def features(self) -> Tensor:
        """Return the (n, flat) inputs of the large layer."""
        first, second = self.layers
        self._maps = second.forward(first.forward(self.images))
        flat = rows(self._maps)
        self._split = flat.shape[1]
        return self._dropped(flat, slice(self._split))

    def head(self, outputs: Tensor) -> Tensor:
        """Return the (n, hidden) gradient of the large layer's outputs, which are overwritten."""
        own, above = self.own, slice(self._split, None)
        hidden = outputs.add_(own["bias3"]).relu_()
        self._kept = self._dropped(hidden, above).float()
        logits = torch.addmm(own["bias4"], self._kept, own["weight4"].t())
        self._out = (torch.softmax(logits, 1) - self.targets) * self.rates
        inner = self._dropped(self._out @ own["weight4"], above).to(hidden.dtype)
        gradient: Tensor = _aten.threshold_backward(inner, hidden, 0)
        return gradient

    def finish(self, back: Tensor, inner: Tensor, flat: Tensor) -> float:
        """Go back through the convolutional layers and update all but the large layer.

        Args:
            back: (n, flat) gradient of `features`.
            inner: (n, hidden) what `head` returned.
            flat: (n, flat) what `features` returned.

        Returns:
            What the gradient of the large layer must be multiplied by.
        """
        first, second = self.layers
        n, channels, height, width = self._maps.shape
        back = self._dropped(back, slice(self._split)).view(n, height, width, channels)
        into, gradients = second.backward(back.permute(0, 3, 1, 2))
        assert into is not None  # noqa: S101 - the second layer was told to return it
        gradients.update(first.backward(into)[1])
        gradients["bias3"] = inner.sum(0, dtype=torch.float32)
        gradients["bias4"] = self._out.sum(0)
        factor = self._clip(gradients, ((inner, flat), (self._out, self._kept)))
        subtract_product(self.own["weight4"], self._out * factor, self._kept, self.decay)
        if self.decay != 1.0:
            # Biases before a normalisation have no gradient.
            names = (*gradients, "bias1", "bias2")
            torch._foreach_mul_([self.own[name] for name in names], self.decay)
        values = [gradients[name].float() for name in gradients]
        torch._foreach_add_([self.own[name] for name in gradients], values, alpha=-factor)
        return factor

    def _dropped(self, values: Tensor, units: slice) -> Tensor:
        return values if self.mask is None else (values * self.mask[:, units]).to(values.dtype)

    def _clip(self, gradients: Parameters, products: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Return the factor that shortens the gradient to `clip_norm`.

        The norm of a product A^T B follows from the small matrices A A^T and B B^T.
        """
        square = torch.stack(torch._foreach_norm([g.float() for g in gradients.values()]))
        square = square.square().sum()
        for left, right in products:
            square = square + ((left @ left.t()) * (right @ right.t())).sum(dtype=torch.float32)
        length = square.clamp(min=1e-60).sqrt()
        return float((self.clip_norm * self.rates.sum() / length).clamp(max=1.0))


def take(steps: Sequence[Step], matrix: Matrix) -> None:
    """Take steps of items together: they share the products with the large layer."""
    sizes = [len(step.images) for step in steps]
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    flat = torch.cat([step.features() for step in steps])
    outputs = matrix.times(flat, sizes)
    inner = torch.cat([step.head(outputs[part]) for step, part in zip(steps, parts, strict=True)])
    back = matrix.back(inner, sizes)
    for step, part in zip(steps, parts, strict=True):
        inner[part] *= step.finish(back[part], inner[part], flat[part])
    matrix.step(inner, flat, sizes, [step.decay for step in steps])
