"""One layer of a convolutional network, written out: convolution, normalisation, pooling, ReLU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.fl.models.base import Parameters

EPSILON, MOMENTUM = 1e-5, 0.1
"""Of batch normalisation: torch's defaults."""
WIDTH = 5
"""Of a kernel."""

_aten: Any = torch.ops.aten


class Convolution(ABC):
    """A convolution of 5 x 5 places that keeps the size of its maps, without a bias.

    Maps are channels-last: (n, channels, height, width) in shape.
    """

    @abstractmethod
    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Return the feature maps of a minibatch, and keep what `backward` needs."""

    @abstractmethod
    def backward(self, back: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of the inputs, where somebody needs them, and of the kernel."""


class Inner(Convolution):
    """Of many channels: the library's own is fastest."""

    def __init__(self, further: bool) -> None:
        """Say whether there is a layer before, which needs the gradient of its outputs."""
        self._further = further

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """See `Convolution.forward`."""
        self._saved = x, kernel
        return functional.conv2d(x, kernel, padding=WIDTH // 2)

    def backward(self, back: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Convolution.backward`."""
        x, kernel = self._saved
        pad = WIDTH // 2
        into, kernels, _ = _aten.convolution_backward(
            back,
            x,
            kernel,
            None,
            [1, 1],
            [pad, pad],
            [1, 1],
            False,
            [0, 0],
            1,
            [self._further, True, False],
        )
        return into, kernels


class Patches(Convolution):
    """Of images of one channel, as products with their patches.

    The library has no fast way for them, and its maps are not channels-last, which makes all that
    follows several times as slow.
    """

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """See `Convolution.forward`."""
        pad = WIDTH // 2
        n, _, height, width = x.shape
        padded = functional.pad(x[:, 0], (pad, pad, pad, pad))
        image, row, column = padded.stride()
        strides = row, column, image, row, column
        # Places come last: so whole rows of an image are copied.
        patches = padded.as_strided((WIDTH, WIDTH, n, height, width), strides)
        self._patches = patches.reshape(WIDTH * WIDTH, -1)
        self._shape = kernel.shape
        maps = self._patches.t() @ kernel.reshape(len(kernel), -1).t()
        return maps.view(n, height, width, -1).permute(0, 3, 1, 2)

    def backward(self, back: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Convolution.backward`."""
        rows = back.permute(0, 2, 3, 1).reshape(-1, back.shape[1])
        return None, (self._patches @ rows).t().reshape(self._shape)


class Layer:
    """One convolutional layer of one item, forward and backward."""

    NAMES: ClassVar[tuple[str, ...]] = ("kernel", "scale", "shift")

    def __init__(self, own: Parameters, number: str, convolution: Convolution) -> None:
        """Read the parameters whose names end with a number."""
        self._own = own
        self._number = number
        self._convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Return the (n, channels, height, width) maps of a minibatch; update the statistics."""
        kernel, bias, scale, shift, mean, variance = (
            self._own[name + self._number]
            for name in ("kernel", "bias", "scale", "shift", "mean", "variance")
        )
        kernel = kernel.to(x.dtype, memory_format=torch.channels_last)
        maps = self._convolution.forward(x, kernel)
        normal, center, inverse = _aten.native_batch_norm(
            maps, scale, shift, mean, variance, True, MOMENTUM, EPSILON
        )
        # Normalisation takes the bias out again: it moves the statistics and nothing else.
        mean.add_(bias, alpha=MOMENTUM)
        pooled, where = functional.max_pool2d_with_indices(normal, [2, 2])
        # Pooling first: the larger of two rectified numbers is the rectified larger one.
        pooled.relu_()
        self._saved = maps, normal, center, inverse, pooled, where
        return pooled

    def backward(self, back: Tensor) -> tuple[Tensor | None, Parameters]:
        """Return the gradients of the inputs and of the parameters in `NAMES`."""
        maps, normal, center, inverse, pooled, where = self._saved
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
        into, kernels = self._convolution.backward(back)
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
