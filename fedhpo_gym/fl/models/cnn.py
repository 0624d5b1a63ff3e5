"""The two-layer convolutional network of the paper's CNN benchmarks (Appendix D)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features
from fedhpo_gym.fl.models.cnn_step import MAX_NORM, PADDING, Layer, Step, merged, pool, rows, take
from fedhpo_gym.fl.models.cnn_together import StepTogether
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel
from fedhpo_gym.fl.shared_matrices import Matrix, OwnMatrix
from fedhpo_gym.fl.shared_together import Matrices, OwnMatrices

MEAN, STD = 0.1307, 0.3081
"""Normalisation of pixels in [0, 1], as the original runs did for all image sets."""
FEW_ROWS = 32
"""Images whose feature maps stay in a core's cache while they are evaluated."""


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
        masks = self._masks(batch)
        if self.together:
            self._step_together(parameters, batch, masks)
            return
        steps = (
            self._step(item, size, parameters, batch, masks)
            for item, size in enumerate(batch.sizes.tolist())
        )
        if batch.shared:
            take(list(steps), cast(Matrix, batch.shared["weight3"]))
            return
        for item, step in enumerate(steps):
            take([step], OwnMatrix(parameters["weight3"][0, item], self.dtype))

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
        kept = batch.uniform((batch.x.shape[1], width)) < keep
        return _moved(kept, self.device).float() / _moved(keep, self.device)

    def _keep(self, rates: Tensor) -> Tensor | None:
        """Return (items, 1, 1) shares of units kept, asked of the device once a round."""
        if self._known[0] is not rates:
            found = rates.cpu()[:, None, None]
            self._known = rates, 1.0 - found if float(found.max()) > 0.0 else None
        return self._known[1]

    def _step(
        self, item: int, size: int, parameters: Parameters, batch: Minibatch, masks: Tensor | None
    ) -> Step:
        own = {
            name: value[0, item] for name, value in parameters.items() if name not in self.shareable
        }
        return Step(
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
    """Put values of the processor on a device, without waiting for what it still computes."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def _normalise(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    images = pixels.float().mul_(1.0 / (255.0 * STD)).sub_(MEAN / STD)
    return images.to(dtype, memory_format=torch.channels_last)


def _forward(own: Parameters, images: Tensor, few: int) -> Tensor:
    """Return (n, classes) logits with running statistics and without dropout."""
    kernels = [merged(own, layer, images.dtype) for layer in ("1", "2")]
    portions = []
    for x in torch.split(images, few):
        for kernel, bias in kernels:
            x = pool(functional.conv2d(x, kernel, bias, padding=PADDING)).relu_()
        portions.append(rows(x))
    weight = own["weight3"].to(images.dtype)
    hidden = torch.addmm(own["bias3"].to(images.dtype), torch.cat(portions), weight.t()).relu_()
    return torch.addmm(own["bias4"], hidden.float(), own["weight4"].t())
