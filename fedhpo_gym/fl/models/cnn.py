"""The two-layer convolutional network of the paper's CNN benchmarks (Appendix D).

`get_model("CNN")` loads `ConvNet` for image tasks. On a CPU, each item takes its step separately
(`ConvolutionStep`), and items of a course may share the products with the large layer `weight3`; on
a GPU, all items take it together (`StepTogether`). Gradients are written out, because autograd
would store gradients as large as the weights. The norm for clipping follows from small Gram
matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel
from fedhpo_gym.fl.shared_matrices import Matrices, Matrix, OwnMatrices, OwnMatrix, subtract_product

EPSILON, MOMENTUM = 1e-5, 0.1
"""Constants of batch normalisation: torch's defaults."""
PADDING = 2
"""Zeros around maps, so that 5 x 5 kernels keep their size."""

_aten: Any = torch.ops.aten


class Layer:
    """One convolutional layer of one item, forward and backward, with channels last in memory."""

    def __init__(self, weights: Parameters, suffix: str, further: bool) -> None:
        self._own = weights
        self._number = suffix
        self._further = further

    def forward(self, x: Tensor) -> Tensor:
        """Return the (n, channels, height, width) maps of a minibatch; update the statistics."""
        kernel, bias, scale, shift, mean, variance = (
            self._own[name + self._number]
            for name in ("kernel", "bias", "scale", "shift", "mean", "variance")
        )
        # Not `contiguous`: it leaves a kernel of one channel unchanged. The maps would then not be
        # channels-last, and all following operations would be several times as slow.
        kernel = kernel.to(x.dtype, memory_format=torch.channels_last)
        maps = functional.conv2d(x, kernel, padding=PADDING)
        normal, center, inverse = _aten.native_batch_norm(
            maps, scale, shift, mean, variance, True, MOMENTUM, EPSILON
        )
        # Normalisation removes the bias again, so that it only changes the running mean.
        mean.add_(bias, alpha=MOMENTUM)
        pooled, where = functional.max_pool2d_with_indices(normal, [2, 2])
        # Pooling first is cheaper and equal: max(relu(a), relu(b)) = relu(max(a, b)).
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
        suffix = self._number
        return into, {
            "kernel" + suffix: kernels,
            "scale" + suffix: scales,
            "shift" + suffix: shifts,
        }


def rows(maps: Tensor) -> Tensor:
    """Flatten channels-last feature maps without a copy."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def pool(maps: Tensor) -> Tensor:
    """Return the maxima of 2 x 2 blocks, computed on channels-last maps."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    places = maps.permute(0, 2, 3, 1)
    pairs = torch.maximum(places[:, 0:height:2], places[:, 1:height:2])
    return torch.maximum(pairs[:, :, 0:width:2], pairs[:, :, 1:width:2]).permute(0, 3, 1, 2)


def merged(weights: Parameters, suffix: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a kernel and a bias that include batch normalisation with running statistics."""
    scale = weights["scale" + suffix] * torch.rsqrt(weights["variance" + suffix] + EPSILON)
    shift = weights["shift" + suffix] - weights["mean" + suffix] * scale
    kernel = weights["kernel" + suffix] * scale[:, None, None, None]
    kernel = kernel.to(dtype, memory_format=torch.channels_last)
    return kernel, (weights["bias" + suffix] * scale + shift).to(dtype)


MAX_NORM = 5.0
"""Default norm to which gradients are clipped, as in the original runs."""


@dataclass(eq=False)
class ConvolutionStep:
    """A step of one item on one minibatch, without the products with the large layer."""

    own: Parameters  # of the item without the large layer, updated in place
    layers: tuple[Layer, Layer]  # the convolutional layers, which read the same parameters
    images: Tensor  # (n, channels, height, width)
    targets: Tensor  # (n, classes) one-hot labels
    rates: Tensor  # (n, 1) learning rate / n
    decay: float  # factor of the weights
    mask: Tensor | None  # (n, flat + hidden) factors of dropout; None for none
    clip_norm: float  # norm to which gradients are clipped

    def features(self) -> Tensor:
        """Return the (n, flat) inputs of the large layer."""
        first, second = self.layers
        self._maps = second.forward(first.forward(self.images))
        flat = rows(self._maps)
        self._split = flat.shape[1]
        return self._dropped(flat, slice(self._split))

    def head(self, outputs: Tensor) -> Tensor:
        """Return the (n, hidden) gradient of the large layer's outputs, which are overwritten."""
        weights, above = self.own, slice(self._split, None)
        hidden = outputs.add_(weights["bias3"]).relu_()
        self._kept = self._dropped(hidden, above).float()
        logits = torch.addmm(weights["bias4"], self._kept, weights["weight4"].t())
        self._out = (torch.softmax(logits, 1) - self.targets) * self.rates
        inner = self._dropped(self._out @ weights["weight4"], above).to(hidden.dtype)
        gradient: Tensor = _aten.threshold_backward(inner, hidden, 0)
        return gradient

    def finish(self, back: Tensor, inner: Tensor, flat: Tensor) -> float:
        """Backpropagate, update all but the large layer, and return the factor of its gradient."""
        first, second = self.layers
        n, channels, height, width = self._maps.shape
        back = self._dropped(back, slice(self._split)).view(n, height, width, channels)
        into, gradients = second.backward(back.permute(0, 3, 1, 2))
        assert into is not None  # noqa: S101 - the second layer returns it
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
        """Return the factor that clips the gradient to `clip_norm`.

        |A^T B|^2 is the sum of (A A^T) * (B B^T), two small (n, n) matrices. Gradients include the
        learning rate / n of each row, so that the bound does as well.
        """
        square = torch.stack(torch._foreach_norm([g.float() for g in gradients.values()]))
        square = square.square().sum()
        for gradient, inputs in products:
            square = square + ((gradient @ gradient.t()) * (inputs @ inputs.t())).sum(
                dtype=torch.float32
            )
        length = square.clamp(min=1e-60).sqrt()
        return float((self.clip_norm * self.rates.sum() / length).clamp(max=1.0))


def take_rows(steps: Sequence[ConvolutionStep], matrix: Matrix) -> None:
    """Take steps of items that share the products with the large layer."""
    sizes = [len(step.images) for step in steps]
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    flat = torch.cat([step.features() for step in steps])
    outputs = matrix.times(flat, sizes)
    inner = torch.cat([step.head(outputs[span]) for step, span in zip(steps, parts, strict=True)])
    back = matrix.back(inner, sizes)
    for step, span in zip(steps, parts, strict=True):
        inner[span] *= step.finish(back[span], inner[span], flat[span])
    matrix.step(inner, flat, sizes, [step.decay for step in steps])


MEAN, STD = 0.1307, 0.3081
"""Normalisation of pixels in [0, 1], as the original runs did for all image sets."""
FEW_ROWS = 32
"""Images per evaluation whose feature maps stay in the cache of a core."""


class ConvNet(TorchModel):
    """conv5x5(32)-BN-pool-ReLU, conv5x5(64)-BN-pool-ReLU, dropout, fc-ReLU-dropout, fc.

    A course has millions of parameters, so each item takes its step by itself, except for products
    with `weight3` where that is shared. The gradients are written out: layers of this size are
    bound by memory, and a written-out step updates weights in place without storing their
    gradients. Parameters have shape (1, items, ..); `mean` and `variance` are running statistics.
    In bfloat16, images, feature maps and the rows of the large layer have that type; weights,
    statistics, logits and losses are float32.
    """

    hyperparameters: ClassVar[Mapping[str, float]] = {"dropout": 0.0, "clip_norm": MAX_NORM}
    rows_at_once: ClassVar[int | None] = 1024
    buffers = frozenset({"mean1", "variance1", "mean2", "variance2"})
    norms = frozenset({"scale1", "shift1", "scale2", "shift2"}) | buffers
    shareable = frozenset({"weight3"})
    revision = 1
    precisions = ("float32", "bfloat16")

    def __init__(
        self, image: tuple[int, int, int], num_classes: int, hidden_width: int, device: torch.device
    ) -> None:
        height, width, channels = image
        if min(height, width) < 4:
            raise InvalidArgumentError(
                "`image` must be at least 4 x 4 pixels, because each of two layers halves it, got "
                f"{height} x {width}; enlarge the images, or choose another model"
            )
        flat = 64 * (height // 4) * (width // 4)
        self.device = device
        self.together = device.type != "cpu"
        self._known: tuple[Tensor | None, Tensor | None] = None, None
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
        """Create the model that fits: for FEMNIST 2,048 hidden units, for CIFAR-10 128."""
        del shape
        size = federation.features.shape[1:]
        image = (size[0], size[1], size[2] if len(size) > 2 else 1)
        return cls(image, federation.num_classes, 2048 if image[2] == 1 else 128, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw from U(-1/sqrt(fan-in), 1/sqrt(fan-in)), the default of torch's layers."""
        values: dict[str, NDArray[np.float32]] = {}
        fan_in = 1
        for name, shape in self._shapes.items():
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else fan_in
            bound = 1.0 / math.sqrt(fan_in)
            values[name] = rng.uniform(-bound, bound, (1, *shape)).astype(np.float32)
        for layer, width in (("1", 32), ("2", 64)):
            values["scale" + layer] = np.ones((1, width), dtype=np.float32)
            values["shift" + layer] = np.zeros((1, width), dtype=np.float32)
            values["mean" + layer] = np.zeros((1, width), dtype=np.float32)
            values["variance" + layer] = np.ones((1, width), dtype=np.float32)
        return values

    def inputs(self, features: Features) -> Tensor:
        """Keep the pixels as they are, uint8 (n, channels, height, width)."""
        images = torch.from_numpy(np.array(features, dtype=np.uint8))
        images = images.unsqueeze(1) if self._channels == 1 else images.permute(0, 3, 1, 2)
        return images.contiguous().to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        masks = self._masks(batch)
        if self.together:
            self._step_together(parameters, batch, masks)
            return
        steps = (
            self._step(item, size, parameters, batch, masks)
            for item, size in enumerate(batch.sizes.tolist())
        )
        if batch.shared:
            take_rows(list(steps), cast(Matrix, batch.shared["weight3"]))
            return
        for item, step in enumerate(steps):
            take_rows([step], OwnMatrix(parameters["weight3"][0, item], self.dtype))

    def _step_together(
        self, parameters: Parameters, batch: Minibatch, masks: Tensor | None
    ) -> None:
        own = {name: value[0] for name, value in parameters.items()}
        items, n, *_ = batch.x.shape
        images = _normalise(batch.x.flatten(0, 1), self.dtype).permute(0, 2, 3, 1)
        sizes = _moved(torch.from_numpy(batch.sizes), self.device)
        step = StepTogether(
            own=own,
            images=images.reshape(items, n, *images.shape[1:]),
            sizes=sizes[:, None, None],
            targets=batch.targets.permute(1, 2, 0),
            rates=batch.rates[..., None],
            decay=batch.decay[:, None, None],
            mask=masks,
            clip_norm=batch.settings["clip_norm"],
        )
        if batch.shared:
            step.take(cast(Matrices, batch.shared["weight3"]))
        else:
            step.take(OwnMatrices(own["weight3"], self.dtype))

    def _masks(self, batch: Minibatch) -> Tensor | None:
        """Draw what dropout keeps, as (items, rows, units) factors."""
        keep = self._keep(batch.settings["dropout"])
        if keep is None:
            return None
        width = sum(self._shapes[name][1] for name in ("weight3", "weight4"))
        mask = batch.uniform((batch.x.shape[1], width)) < keep
        return _moved(mask, self.device).float() / _moved(keep, self.device)

    def _keep(self, rates: Tensor) -> Tensor | None:
        """Return (items, 1, 1) shares of units kept, asked of the device once a round."""
        if self._known[0] is not rates:
            dropout_rates = rates.cpu()[:, None, None]
            self._known = rates, 1.0 - dropout_rates if float(dropout_rates.max()) > 0.0 else None
        return self._known[1]

    def _step(
        self, item: int, size: int, parameters: Parameters, batch: Minibatch, masks: Tensor | None
    ) -> ConvolutionStep:
        own = {
            name: value[0, item] for name, value in parameters.items() if name not in self.shareable
        }
        return ConvolutionStep(
            own=own,
            layers=(Layer(own, "1", further=False), Layer(own, "2", further=True)),
            images=_normalise(batch.x[item, :size], self.dtype),
            targets=batch.targets[:, item, :size].t(),
            rates=batch.rates[item, :size, None],
            decay=float(batch.decay[item]),
            mask=None if masks is None else masks[item, :size],
            clip_norm=float(batch.settings["clip_norm"][item]),
        )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        images = _normalise(x, self.dtype)
        items = parameters["bias4"].shape[1]
        out = [
            _forward(
                {name: value[0, item] for name, value in parameters.items()},
                images,
                len(images) if self.together else FEW_ROWS,
            )
            for item in range(items)
        ]
        return torch.stack(out).permute(2, 0, 1).contiguous()


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Copy CPU values to a device without waiting for its pending work."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def _normalise(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    images = pixels.float().mul_(1.0 / (255.0 * STD)).sub_(MEAN / STD)
    return images.to(dtype, memory_format=torch.channels_last)


def _forward(weights: Parameters, images: Tensor, few: int) -> Tensor:
    """Return (n, classes) logits with running statistics and without dropout."""
    kernels = [merged(weights, layer, images.dtype) for layer in ("1", "2")]
    portions = []
    for x in torch.split(images, few):
        for kernel, bias in kernels:
            x = pool(functional.conv2d(x, kernel, bias, padding=PADDING)).relu_()
        portions.append(rows(x))
    weight = weights["weight3"].to(images.dtype)
    hidden = torch.addmm(weights["bias3"].to(images.dtype), torch.cat(portions), weight.t()).relu_()
    return torch.addmm(weights["bias4"], hidden.float(), weights["weight4"].t())


SIDE = 2 * PADDING + 1


@dataclass(eq=False)
class StepTogether:
    """A step of all items together, which GPUs need to be fast; padded rows stay zero."""

    own: Parameters  # (items, ..) without the large layer, updated in place
    images: Tensor  # (items, rows, height, width, channels)
    sizes: Tensor  # (items, 1, 1) rows that are not padding
    targets: Tensor  # (items, rows, classes) one-hot labels
    rates: Tensor  # (items, rows, 1) learning rate / size; 0 for padded rows
    decay: Tensor  # (items, 1, 1) factor of the weights
    mask: Tensor | None  # (items, rows, flat + hidden) factors of dropout; None for none
    clip_norm: Tensor  # (items,) norms to which gradients are clipped

    def take(self, matrix: Matrices) -> None:
        """Update the parameters, those of the large layer among them."""
        rows = torch.arange(self.images.shape[1], device=self.sizes.device)
        valid = rows[None, :, None] < self.sizes
        first, second = (_Layer(self.own, suffix, valid, self.sizes) for suffix in ("1", "2"))
        maps = second.forward(first.forward(self.images * valid[..., None, None]))
        flat = maps.flatten(2)
        split = flat.shape[2]
        flat = self._dropped(flat, slice(split))
        hidden = matrix.times(flat).add_(self.own["bias3"][:, None]).relu_()
        above = slice(split, None)
        dropped = self._dropped(hidden, above).float()
        weight = self.own["weight4"]
        logits = torch.baddbmm(self.own["bias4"][:, None], dropped, weight.mT)
        out = (torch.softmax(logits, 2) - self.targets) * self.rates
        inner = self._dropped(out @ weight, above).to(hidden.dtype)
        inner = _aten.threshold_backward(inner, hidden, 0)
        back = self._dropped(matrix.back(inner), slice(split)).view_as(maps)
        into, gradients = second.backward(back, further=True)
        gradients.update(first.backward(into, further=False)[1])
        gradients["bias3"] = inner.sum(1, dtype=torch.float32)
        gradients["bias4"] = out.sum(1)
        factor = self._clip(gradients, ((inner, flat), (out, dropped)))
        matrix.step((inner * factor).to(inner.dtype), flat, self.decay)
        weight.mul_(self.decay).sub_((out * factor).mT @ dropped)
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
        """Return the (items, 1, 1) factors that clip gradients to `clip_norm`."""
        lengths = [
            torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float32)
            for gradient in gradients.values()
        ]
        square = torch.stack(lengths).square().sum(0)
        for left, inputs in products:
            square += ((left @ left.mT) * (inputs @ inputs.mT)).sum((1, 2), dtype=torch.float32)
        length = square.clamp(min=1e-60).sqrt()
        return (self.clip_norm * self.rates.sum((1, 2)) / length).clamp(max=1.0)[:, None, None]


class _Layer:
    """A convolutional layer of all items; maps are (items, rows, height, width, channels)."""

    def __init__(self, weights: Parameters, suffix: str, valid: Tensor, sizes: Tensor) -> None:
        self._own = weights
        self._number = suffix
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
        """Return the gradients of the inputs (with `further`) and of the parameters."""
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
    """Return patches (im2col): (items, rows x height x width, kernel positions x channels)."""
    items, n, height, width, channels = x.shape
    padded = functional.pad(x, (0, 0, PADDING, PADDING, PADDING, PADDING))
    around = padded.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    return around.permute(0, 1, 2, 3, 5, 6, 4).reshape(
        items, n * height * width, SIDE * SIDE * channels
    )
