"""One step of the convolutional network for all items at once, as graphics processors need it.

It computes what `cnn_step` computes, with one operation for all items where that one has one for
each: starting an operation there takes longer than an item's share of it. Minibatches are padded to
one width; padded rows are zero in every map and have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.fl.models.cnn_step import EPSILON, MOMENTUM, PADDING
from fedhpo_gym.fl.models.torch_model import Parameters
from fedhpo_gym.fl.shared_together import Matrices

SIDE = 2 * PADDING + 1

_aten: Any = torch.ops.aten


@dataclass(eq=False)
class StepTogether:
    """A step of all items on one minibatch each."""

    own: Parameters  # (items, ..), updated in place, but for the large layer's
    images: Tensor  # (items, rows, height, width, channels)
    sizes: Tensor  # (items, 1, 1) rows that are not padding
    targets: Tensor  # (items, rows, classes) one-hot labels
    rates: Tensor  # (items, rows, 1) learning rate / size; 0 for padded rows
    decay: Tensor  # (items, 1, 1) factor of the weights
    mask: Tensor | None  # (items, rows, flat + hidden) factors of dropout; None for none
    clip_norm: Tensor  # (items,) lengths of the longest gradients that are not shortened to them

    def take(self, matrix: Matrices) -> None:
        """Update the parameters, those of the large layer among them."""
        rows = torch.arange(self.images.shape[1], device=self.sizes.device)
        valid = rows[None, :, None] < self.sizes
        first, second = (_Layer(self.own, number, valid, self.sizes) for number in ("1", "2"))
        maps = second.forward(first.forward(self.images * valid[..., None, None]))
        flat = maps.flatten(2)
        split = flat.shape[2]
        flat = self._dropped(flat, slice(split))
        hidden = matrix.times(flat).add_(self.own["bias3"][:, None]).relu_()
        above = slice(split, None)
        kept = self._dropped(hidden, above).float()
        weight = self.own["weight4"]
        logits = torch.baddbmm(self.own["bias4"][:, None], kept, weight.mT)
        out = (torch.softmax(logits, 2) - self.targets) * self.rates
        inner = self._dropped(out @ weight, above).to(hidden.dtype)
        inner = _aten.threshold_backward(inner, hidden, 0)
        back = self._dropped(matrix.back(inner), slice(split)).view_as(maps)
        into, gradients = second.backward(back, further=True)
        gradients.update(first.backward(into, further=False)[1])
        gradients["bias3"] = inner.sum(1, dtype=torch.float32)
        gradients["bias4"] = out.sum(1)
        factor = self._clip(gradients, ((inner, flat), (out, kept)))
        matrix.step((inner * factor).to(inner.dtype), flat, self.decay)
        weight.mul_(self.decay).sub_((out * factor).mT @ kept)
        self._update(gradients, factor)

    def _update(self, gradients: Parameters, factor: Tensor) -> None:
        for name in (*gradients, "bias1", "bias2"):  # those two have no gradient
            value = self.own[name]
            shape = (-1, *(1,) * (value.ndim - 1))
            value.mul_(self.decay.view(shape))
            if name in gradients:
                value.addcmul_(gradients[name].float(), factor.view(shape), value=-1.0)

    def _dropped(self, values: Tensor, units: slice) -> Tensor:
        return values if self.mask is None else (values * self.mask[..., units]).to(values.dtype)

    def _clip(self, gradients: Parameters, products: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (items, 1, 1) factors that shorten gradients to `clip_norm`."""
        lengths = [
            torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float32)
            for gradient in gradients.values()
        ]
        square = torch.stack(lengths).square().sum(0)
        for left, right in products:
            square += ((left @ left.mT) * (right @ right.mT)).sum((1, 2), dtype=torch.float32)
        length = square.clamp(min=1e-60).sqrt()
        return (self.clip_norm * self.rates.sum((1, 2)) / length).clamp(max=1.0)[:, None, None]


class _Layer:
    """A convolutional layer of all items; maps are (items, rows, height, width, channels)."""

    def __init__(self, own: Parameters, number: str, valid: Tensor, sizes: Tensor) -> None:
        self._own = own
        self._number = number
        self._valid = valid
        self._sizes = sizes

    def _parameter(self, name: str) -> Tensor:
        return self._own[name + self._number]

    def forward(self, x: Tensor) -> Tensor:
        items, n, height, width, _ = x.shape
        kernel = self._parameter("kernel").to(x.dtype).permute(0, 3, 4, 2, 1)
        columns = _columns(x)
        maps = torch.bmm(columns, kernel.flatten(1, 3))
        places = height * width
        count = self._sizes * places
        center = maps.sum(1, dtype=torch.float32)[:, None] / count
        valid = self._valid.repeat_interleave(places, dim=1)
        distance = (maps - center).mul_(valid)
        variance = distance.square().sum(1)[:, None] / count
        self._statistics(center, variance, count)
        inverse = torch.rsqrt(variance + EPSILON)
        scale, shift = self._parameter("scale")[:, None], self._parameter("shift")[:, None]
        normal = (distance * (inverse * scale)).add_(shift).to(x.dtype)
        normal = normal.view(items * n, height, width, -1).permute(0, 3, 1, 2)
        pooled, where = functional.max_pool2d_with_indices(normal, [2, 2])
        pooled = pooled.relu_()
        self._saved = columns, distance, inverse, normal, pooled, where, valid, count
        rectified = pooled.permute(0, 2, 3, 1)
        shape = (items, n, *rectified.shape[1:])
        return rectified.reshape(shape) * self._valid[..., None, None]

    def _statistics(self, center: Tensor, variance: Tensor, count: Tensor) -> None:
        """Update the running statistics; of the variance, the unbiased one, as torch does."""
        mean = center[:, 0] + self._parameter("bias")
        unbiased = (variance * (count / (count - 1).clamp(min=1)))[:, 0]
        self._parameter("mean").lerp_(mean, MOMENTUM)
        self._parameter("variance").lerp_(unbiased, MOMENTUM)

    def backward(self, back: Tensor, further: bool) -> tuple[Tensor, Parameters]:
        """Return the gradients of the inputs, if asked for, and of the parameters."""
        columns, distance, inverse, normal, pooled, where, valid, count = self._saved
        items = len(back)
        back = back.flatten(0, 1).permute(0, 3, 1, 2)
        back = _aten.threshold_backward(back, pooled, 0)
        back = _aten.max_pool2d_with_indices_backward(
            back, normal, [2, 2], [2, 2], [0, 0], [1, 1], False, where
        )
        images, channels, height, width = back.shape
        back = back.permute(0, 2, 3, 1).reshape(items, -1, channels)
        shifts = back.sum(1, dtype=torch.float32)[:, None]
        standard = distance.mul_(inverse)
        scales = (back * standard).sum(1, dtype=torch.float32)[:, None]
        inner = back - shifts / count
        inner.sub_(standard * (scales / count)).mul_(valid)
        inner.mul_(inverse * self._parameter("scale")[:, None])
        slope = inner.to(columns.dtype)
        kernel = self._parameter("kernel")
        kernels = torch.bmm(columns.mT, slope)
        shape = (items, SIDE, SIDE, kernel.shape[2], channels)
        gradients = {
            "kernel" + self._number: kernels.view(shape).permute(0, 4, 3, 1, 2),
            "scale" + self._number: scales[:, 0],
            "shift" + self._number: shifts[:, 0],
        }
        if not further:
            return slope, gradients
        flipped = kernel.to(slope.dtype).flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
        around = slope.view(items, images // items, height, width, channels)
        into = torch.bmm(_columns(around), flipped)
        return into.view(items, images // items, height, width, -1), gradients


def _columns(x: Tensor) -> Tensor:
    """Return what kernels see: (items, rows x height x width, places of a kernel x channels)."""
    items, n, height, width, channels = x.shape
    padded = functional.pad(x, (0, 0, PADDING, PADDING, PADDING, PADDING))
    around = padded.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    return around.permute(0, 1, 2, 3, 5, 6, 4).reshape(
        items, n * height * width, SIDE * SIDE * channels
    )
