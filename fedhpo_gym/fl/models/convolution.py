"""One layer of a convolutional network, written out: convolution, normalisation, pooling, ReLU."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.fl.models.base import Parameters

EPSILON, MOMENTUM = 1e-5, 0.1
"""Of batch normalisation: torch's defaults."""
PADDING = 2
"""Zeros around maps, which keep their size under kernels of 5 x 5 places."""

_aten: Any = torch.ops.aten


class Layer:
    """One convolutional layer of one item, forward and backward.

    Feature maps are channels-last: (n, channels, height, width) in shape, places first in memory.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("kernel", "scale", "shift")

    def __init__(self, own: Parameters, number: str, further: bool) -> None:
        """Read the parameters whose names end with a number.

        Args:
            own: parameters of the item.
            number: the end of the names.
            further: whether there is a layer before, which needs the gradient of its outputs.
        """
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
        """Return the gradients of the inputs and of the parameters in `NAMES`."""
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
        values = (kernels, scales, shifts)
        return into, {n + self._number: v for n, v in zip(self.NAMES, values, strict=True)}


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
