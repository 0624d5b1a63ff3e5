"""The two-layer convolutional network of the paper's CNN benchmarks (Appendix D)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.datasets.records import Features
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.models.base import Minibatch, Model, Parameters

MEAN, STD = 0.1307, 0.3081
"""Normalisation of pixels in [0, 1], as the original runs did for all image sets."""
MAX_NORM = 5.0
"""Gradients longer than this are shortened to it, as in the original runs."""
EPSILON, MOMENTUM = 1e-5, 0.1
"""Of batch normalisation: torch's defaults."""
FEW_ROWS = 32
"""Images whose feature maps stay in a core's cache while they are evaluated."""

_aten: Any = torch.ops.aten


class ConvNet(Model):
    """conv5x5(32)-BN-pool-ReLU, conv5x5(64)-BN-pool-ReLU, dropout, fc-ReLU-dropout, fc.

    A course has millions of parameters, so nothing is gained by more than one per block; each item
    takes its step by itself. The gradients are written out: layers of this size are bound by
    memory, and a written-out step updates weights in place without storing their gradients.
    Parameters have shape (1, items, .., 1); `mean` and `variance` are running statistics.
    """

    hyperparameters: ClassVar[Mapping[str, float]] = {"dropout": 0.0}
    rows_at_once: ClassVar[int | None] = 256
    buffers = frozenset({"mean1", "variance1", "mean2", "variance2"})
    norms = frozenset({"scale1", "shift1", "scale2", "shift2"}) | buffers

    def __init__(
        self,
        image: tuple[int, int, int],
        num_classes: int,
        hidden_width: int,
        device: torch.device,
    ) -> None:
        """Create the model for images of (height, width, channels)."""
        height, width, channels = image
        flat = 64 * (height // 4) * (width // 4)
        self.device = device
        self._shapes = {
            "kernel1": (32, channels, 5, 5),
            "bias1": (32,),
            "kernel2": (64, 32, 5, 5),
            "bias2": (64,),
            "weight3": (hidden_width, flat),
            "bias3": (hidden_width,),
            "weight4": (num_classes, hidden_width),
            "bias4": (num_classes,),
        }
        self._channels = channels
        layers = sum(math.prod(shape) for shape in self._shapes.values())
        self.num_parameters = layers + 2 * (32 + 64)

    @classmethod
    def for_federation(cls, federation: Federation, device: torch.device, **shape: Any) -> ConvNet:
        """See `Model.for_federation`; FEMNIST has 2,048 hidden units, CIFAR-10 has 128."""
        del shape
        size = federation.features.shape[1:]
        image = (size[0], size[1], size[2] if len(size) > 2 else 1)
        return cls(image, federation.num_classes, 2048 if image[2] == 1 else 128, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw from U(-1/sqrt(fan-in), 1/sqrt(fan-in)), the default of torch's layers."""
        drawn: dict[str, NDArray[np.float32]] = {}
        fan_in = 1
        for name, shape in self._shapes.items():
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else fan_in
            bound = 1.0 / math.sqrt(fan_in)
            drawn[name] = rng.uniform(-bound, bound, (1, *shape)).astype(np.float32)
        for layer, width in (("1", 32), ("2", 64)):
            drawn["scale" + layer] = np.ones((1, width), dtype=np.float32)
            drawn["shift" + layer] = np.zeros((1, width), dtype=np.float32)
            drawn["mean" + layer] = np.zeros((1, width), dtype=np.float32)
            drawn["variance" + layer] = np.ones((1, width), dtype=np.float32)
        return drawn

    def inputs(self, features: Features) -> Tensor:
        """Keep the pixels as they are, uint8 (n, channels, height, width)."""
        images = torch.from_numpy(np.array(features, dtype=np.uint8))
        images = images.unsqueeze(1) if self._channels == 1 else images.permute(0, 3, 1, 2)
        return images.contiguous().to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """See `Model.sgd_step`."""
        rates = batch.settings["dropout"][:, 0, 0]
        masks = None
        if float(rates.max()) > 0.0:
            width = sum(self._shapes[name][1] for name in ("weight3", "weight4"))
            drawn = batch.uniform((batch.x.shape[1], width))
            keep = 1.0 - rates[:, None, None]
            masks = (drawn < keep).float() / keep
        for item, size in enumerate(batch.sizes.tolist()):
            if size:
                own = {name: value[0, item, ..., 0] for name, value in parameters.items()}
                _Step(own, None if masks is None else masks[item, :size]).take(
                    _normalise(batch.x[item, :size]),
                    batch.targets[:, item, :size, 0].t(),
                    batch.rates[item, :size],
                    batch.decay[item, 0, 0],
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        images = _normalise(x)
        items = parameters["bias4"].shape[1]
        out = [
            _forward({name: value[0, item, ..., 0] for name, value in parameters.items()}, images)
            for item in range(items)
        ]
        return torch.stack(out)[..., None].permute(2, 0, 1, 3).contiguous()


def _normalise(pixels: Tensor) -> Tensor:
    images = pixels.float().mul_(1.0 / (255.0 * STD)).sub_(MEAN / STD)
    return images.contiguous(memory_format=torch.channels_last)


def _layout(maps: Tensor) -> torch.memory_format:
    last = maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _rows(maps: Tensor) -> Tensor:
    """Flatten channels-last feature maps without a copy."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def _pool(maps: Tensor) -> Tensor:
    """Return the largest of every 2 x 2 places; channels-last, as whole rows of channels."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    places = maps.permute(0, 2, 3, 1)
    rows = torch.maximum(places[:, 0:height:2], places[:, 1:height:2])
    return torch.maximum(rows[:, :, 0:width:2], rows[:, :, 1:width:2]).permute(0, 3, 1, 2)


def _forward(own: Parameters, images: Tensor) -> Tensor:
    """Return (n, classes) logits with running statistics and without dropout."""
    kernels = [_fixed(own, layer) for layer in ("1", "2")]
    portions = []
    for x in torch.split(images, FEW_ROWS):
        for kernel, bias in kernels:
            x = _pool(functional.conv2d(x, kernel, bias, padding=2)).relu_()
        portions.append(_rows(x))
    x = torch.addmm(own["bias3"], torch.cat(portions), own["weight3"].t()).relu_()
    return torch.addmm(own["bias4"], x, own["weight4"].t())


def _fixed(own: Parameters, layer: str) -> tuple[Tensor, Tensor]:
    """Return a kernel and a bias that include batch normalisation by fixed statistics."""
    scale = own["scale" + layer] * torch.rsqrt(own["variance" + layer] + EPSILON)
    shift = own["shift" + layer] - own["mean" + layer] * scale
    kernel = own["kernel" + layer] * scale[:, None, None, None]
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    return kernel, own["bias" + layer] * scale + shift


class _Step:
    """One SGD step of one course on one minibatch, forward and backward.

    Everything backward is multiplied by the learning rate, see `Minibatch.rates`.
    """

    def __init__(self, own: Parameters, mask: Tensor | None) -> None:
        self._own = own
        self._mask = mask
        self._saved: dict[str, tuple[Tensor, ...]] = {}

    def take(self, images: Tensor, targets: Tensor, rates: Tensor, decay: Tensor) -> None:
        """Update the parameters in place.

        Args:
            images: (n, channels, height, width).
            targets: (n, classes) one-hot labels.
            rates: (n, 1) learning rate / n.
            decay: factor of the weights.
        """
        own = self._own
        maps = self._convolve("2", self._convolve("1", images))
        flat = _rows(maps)
        split = flat.shape[1]
        flat = flat if self._mask is None else flat * self._mask[:, :split]
        hidden = torch.addmm(own["bias3"], flat, own["weight3"].t()).relu_()
        kept = hidden if self._mask is None else hidden * self._mask[:, split:]
        logits = torch.addmm(own["bias4"], kept, own["weight4"].t())
        out = (torch.softmax(logits, 1) - targets) * rates
        inner = out @ own["weight4"]
        inner = inner if self._mask is None else inner.mul_(self._mask[:, split:])
        inner = _aten.threshold_backward(inner, hidden, 0)
        back = inner @ own["weight3"]
        back = back if self._mask is None else back.mul_(self._mask[:, :split])
        back = back.view(len(back), maps.shape[2], maps.shape[3], -1).permute(0, 3, 1, 2)
        back, gradients = self._backward("2", _aten.threshold_backward(back, maps, 0), True)
        back = _aten.threshold_backward(back, self._saved["2"][0], 0)
        gradients.update(self._backward("1", back, False)[1])
        gradients["bias3"], gradients["bias4"] = inner.sum(0), out.sum(0)
        scale = self._clip(gradients, ((inner, flat), (out, kept)), rates.sum())
        for name, gradient in gradients.items():
            own[name].mul_(decay).sub_(gradient * scale)
        for name, left, right in (("weight3", inner, flat), ("weight4", out, kept)):
            own[name].addmm_((left * scale).t(), right, beta=float(decay), alpha=-1.0)

    def _convolve(self, layer: str, x: Tensor) -> Tensor:
        own = self._own
        kernel = own["kernel" + layer].contiguous(memory_format=torch.channels_last)
        maps = functional.conv2d(x, kernel, own["bias" + layer], padding=2)
        normal, mean, inverse = _aten.native_batch_norm(
            maps,
            own["scale" + layer],
            own["shift" + layer],
            own["mean" + layer],
            own["variance" + layer],
            True,
            MOMENTUM,
            EPSILON,
        )
        # Maps of one channel are not channels-last, and pooling them takes ten times as long.
        normal = normal.contiguous(memory_format=torch.channels_last)
        pooled, where = functional.max_pool2d_with_indices(normal, [2, 2])
        self._saved[layer] = (x, kernel, maps, normal, mean, inverse, where)
        # Pooling first: the larger of two rectified numbers is the rectified larger one.
        return pooled.relu_()

    def _backward(self, layer: str, back: Tensor, further: bool) -> tuple[Tensor, Parameters]:
        x, kernel, maps, normal, mean, inverse, where = self._saved[layer]
        back = _aten.max_pool2d_with_indices_backward(
            back, normal, [2, 2], [2, 2], [0, 0], [1, 1], False, where
        ).contiguous(memory_format=_layout(maps))
        scale = self._own["scale" + layer]
        back, scales, shifts = _aten.native_batch_norm_backward(
            back, maps, scale, None, None, mean, inverse, True, EPSILON, [True, True, True]
        )
        into, kernels, biases = _aten.convolution_backward(
            back,
            x,
            kernel,
            [len(kernel)],
            [1, 1],
            [2, 2],
            [1, 1],
            False,
            [0, 0],
            1,
            [further, True, True],
        )
        names = ("kernel", "bias", "scale", "shift")
        values = (kernels, biases, scales, shifts)
        return into, {name + layer: value for name, value in zip(names, values, strict=True)}

    def _clip(
        self, gradients: Parameters, products: tuple[tuple[Tensor, Tensor], ...], rate: Tensor
    ) -> Tensor:
        """Return the factor that shortens the gradient to `MAX_NORM`.

        The norm of a product A^T B follows from the small matrices A A^T and B B^T.
        """
        square = sum((g.square().sum() for g in gradients.values()), torch.zeros_like(rate))
        for left, right in products:
            square = square + ((left @ left.t()) * (right @ right.t())).sum()
        return (MAX_NORM * rate / square.clamp(min=1e-60).sqrt()).clamp(max=1.0)
