"""One step of the convolutional network, written out: its layers, and what updates them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.fl.models.torch_model import Parameters
from fedhpo_gym.fl.shared_matrices import Matrix, subtract_product

EPSILON, MOMENTUM = 1e-5, 0.1
"""Of batch normalisation: torch's defaults."""
PADDING = 2
"""Zeros around maps, which keep their size under kernels of 5 x 5 places."""

_aten: Any = torch.ops.aten


class Layer:
    """One convolutional layer of one item, forward and backward, with channels last in memory."""

    def __init__(self, own: Parameters, number: str, further: bool) -> None:
        self._own = own
        self._number = number
        self._further = further

    def forward(self, x: Tensor) -> Tensor:
        """Return the (n, channels, height, width) maps of a minibatch; update the statistics."""
        kernel, bias, scale, shift, mean, variance = (
            self._own[name + self._number]
            for name in ("kernel", "bias", "scale", "shift", "mean", "variance")
        )
        # Not `contiguous`, which leaves a kernel of one channel as it is, and then the maps are
        # not channels-last and all that follows takes several times as long.
        kernel = kernel.to(x.dtype, memory_format=torch.channels_last)
        maps = functional.conv2d(x, kernel, padding=PADDING)
        normal, center, inverse = _aten.native_batch_norm(
            maps, scale, shift, mean, variance, True, MOMENTUM, EPSILON
        )
        # Normalisation takes the bias out again: it moves the statistics and nothing else.
        mean.add_(bias, alpha=MOMENTUM)
        pooled, where = functional.max_pool2d_with_indices(normal, [2, 2])
        # Pooling first: the larger of two rectified numbers is the rectified larger one.
        pooled.relu_()
        self._saved = x, kernel, maps, normal, center, inverse, pooled, where
        return pooled

    def backward(self, back: Tensor) -> tuple[Tensor | None, Parameters]:
        """Return the gradients of the inputs and of the parameters that have one."""
        x, kernel, maps, normal, center, inverse, pooled, where = self._saved
        back = _aten.threshold_backward(back, pooled, 0)
        back = _aten.max_pool2d_with_indices_backward(
            back, normal, [2, 2], [2, 2], [0, 0], [1, 1], False, where
        )
        back, scales, shifts = _aten.native_batch_norm_backward(
            back,
            maps,
            self._own["scale" + self._number],
            None,
            None,
            center,
            inverse,
            True,
            EPSILON,
            [True, True, True],
        )
        into, kernels, _ = _aten.convolution_backward(
            back,
            x,
            kernel,
            None,
            [1, 1],
            [PADDING, PADDING],
            [1, 1],
            False,
            [0, 0],
            1,
            [self._further, True, False],
        )
        own = self._number
        return into, {"kernel" + own: kernels, "scale" + own: scales, "shift" + own: shifts}


def rows(maps: Tensor) -> Tensor:
    """Flatten channels-last feature maps without a copy."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def pool(maps: Tensor) -> Tensor:
    """Return the largest of every 2 x 2 places; channels-last, as whole rows of channels."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    places = maps.permute(0, 2, 3, 1)
    pairs = torch.maximum(places[:, 0:height:2], places[:, 1:height:2])
    return torch.maximum(pairs[:, :, 0:width:2], pairs[:, :, 1:width:2]).permute(0, 3, 1, 2)


def merged(own: Parameters, number: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a kernel and a bias that include batch normalisation by fixed statistics."""
    scale = own["scale" + number] * torch.rsqrt(own["variance" + number] + EPSILON)
    shift = own["shift" + number] - own["mean" + number] * scale
    kernel = own["kernel" + number] * scale[:, None, None, None]
    kernel = kernel.to(dtype, memory_format=torch.channels_last)
    return kernel, (own["bias" + number] * scale + shift).to(dtype)


MAX_NORM = 5.0
"""Gradients longer than this are shortened to it, as in the original runs, unless configured."""


@dataclass(eq=False)
class Step:
    """A step of one item on one minibatch, but for the products with the large layer."""

    own: Parameters  # of the item, updated in place, but for the large layer's
    layers: tuple[Layer, Layer]  # the convolutional layers, reading the same parameters
    images: Tensor  # (n, channels, height, width)
    targets: Tensor  # (n, classes) one-hot labels
    rates: Tensor  # (n, 1) learning rate / n
    decay: float  # factor of the weights
    mask: Tensor | None  # (n, flat + hidden) factors of dropout; None for none
    clip_norm: float  # length of the longest gradient that is not shortened to it

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
        """Go back, update all but the large layer, and return its gradient's factor."""
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
