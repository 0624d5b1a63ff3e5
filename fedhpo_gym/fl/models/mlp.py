"""The perceptron of the paper's MLP benchmarks: Linear - BatchNorm - ReLU layers, then Linear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.datasets.records import Features
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.models.base import Minibatch, Parameters, TorchModel, softmax_residual_

EPSILON, MOMENTUM = 1e-5, 0.1
"""Of batch normalisation: torch's defaults."""
CACHED = 2**17
"""Activations of a layer that are computed at once: few enough to stay in a core's cache."""

_aten: Any = torch.ops.aten


class Perceptron(TorchModel):
    """`model_depth` hidden layers of `model_width` units with batch normalisation before ReLU.

    Training normalises by the statistics of the minibatch; running statistics, `mean` and
    `variance`, serve evaluation, and the server averages them as it does everything else.
    A minibatch of one row has no variance and is left out. Weight decay applies to all trained
    parameters, as in `torch.optim.SGD`.

    Parameters: `weight` (1, items, inputs, width, 1) and, for the last layer, (1, items, classes,
    width, 1); all others (1, items, width, 1).
    """

    architecture: ClassVar[tuple[str, ...]] = ("model_depth", "model_width")
    min_rows: ClassVar[int] = 2

    def __init__(
        self, num_inputs: int, num_classes: int, depth: int, width: int, device: torch.device
    ) -> None:
        """Create the model for `num_inputs` features.

        Raises:
            InvalidArgumentError: there is no hidden layer or no unit in it.
        """
        for name, value in (("model_depth", depth), ("model_width", width)):
            if value < 1:
                raise InvalidArgumentError(f"`{name}` must be at least 1, got {value!r}")
        self.device = device
        self.num_classes = num_classes
        self.depth = depth
        self.width = width
        self.inputs_of = (num_inputs, *[width] * depth)
        self.buffers = frozenset(_names(depth, "mean", "variance"))
        self.norms = frozenset(_names(depth, "scale", "shift")) | self.buffers
        hidden = sum((inputs + 3) * width for inputs in self.inputs_of[:depth])
        self.num_parameters = hidden + (width + 1) * num_classes

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> Perceptron:
        """See `Model.for_federation`; `shape` has `model_depth` and `model_width`."""
        depth, width = int(shape["model_depth"]), int(shape["model_width"])
        return cls(federation.features.shape[1], federation.num_classes, depth, width, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw layers from U(-1/sqrt(fan-in), 1/sqrt(fan-in)), the default of torch."""
        drawn: dict[str, NDArray[np.float32]] = {}
        for layer, inputs in enumerate(self.inputs_of, start=1):
            hidden = layer <= self.depth
            shape = (inputs, self.width) if hidden else (self.num_classes, inputs)
            bound = 1.0 / np.sqrt(inputs)
            bias = self.width if hidden else self.num_classes
            drawn[f"weight{layer}"] = rng.uniform(-bound, bound, (1, *shape)).astype(np.float32)
            drawn[f"bias{layer}"] = rng.uniform(-bound, bound, (1, bias)).astype(np.float32)
        for name in self.norms:
            fill = np.ones if name.startswith(("scale", "variance")) else np.zeros
            drawn[name] = fill((1, self.width), dtype=np.float32)
        return dict(sorted(drawn.items()))

    def inputs(self, features: Features) -> Tensor:
        """Keep the features as they are."""
        features = features[np.arange(len(features))]
        return torch.from_numpy(np.array(features, dtype=np.float32)).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """See `Model.sgd_step`."""
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        rows = batch.x.shape[1]
        mask = (torch.arange(rows, device=self.device) < sizes[:, None]).float()[..., None]
        # Viewed, not transposed: which product a library chooses depends on strides.
        share = (mask / sizes.clamp(min=1)[:, None, None]).view(len(sizes), 1, rows)
        for part in self._parts(len(sizes), rows):
            own = {name: value[0, part, ..., 0] for name, value in parameters.items()}
            step = _Step(own, self.depth, mask[part], share[part], sizes[part])
            step.take(batch.x[part], batch.targets[:, part], batch.rates[part], batch.decay[part])

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        items, last = parameters["bias1"].shape[1], self.depth + 1
        out = x.new_empty((self.num_classes, items, len(x), 1))
        for part in self._parts(items, len(x)):
            own = {name: value[0, part, ..., 0] for name, value in parameters.items()}
            hidden = x.expand(len(own["bias1"]), *x.shape)
            for layer in range(1, last):
                hidden = torch.baddbmm(*_folded(own, layer, hidden)).relu_()
            logits = torch.baddbmm(
                own[f"bias{last}"][..., None], own[f"weight{last}"], hidden.transpose(1, 2)
            )
            out[:, part, :, 0] = logits.transpose(0, 1)
        return out

    def _parts(self, items: int, rows: int) -> Iterator[slice]:
        """Yield as many items at a time as the cache holds."""
        count = max(CACHED // (rows * self.width), 1)
        return (slice(start, start + count) for start in range(0, items, count))


def _names(depth: int, *kinds: str) -> list[str]:
    return [f"{kind}{layer}" for kind in kinds for layer in range(1, depth + 1)]


def _folded(own: Parameters, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return shift, x and weight of a hidden layer and its normalisation by running statistics."""
    gain = own[f"scale{layer}"] * torch.rsqrt(own[f"variance{layer}"] + EPSILON)
    shift = torch.addcmul(own[f"shift{layer}"], own[f"bias{layer}"] - own[f"mean{layer}"], gain)
    return shift[:, None], x, own[f"weight{layer}"] * gain[:, None]


class _Step:
    """One SGD step of some items, forward and backward.

    A hidden layer sees centred inputs, so that its products are centred, too: the mean of a
    minibatch needs no pass over them, and the bias has no gradient, as normalisation removes it.
    Padded rows are zero from there on. Everything backward is multiplied by the learning rate, see
    `Minibatch.rates`.
    """

    def __init__(
        self, own: Parameters, depth: int, mask: Tensor, share: Tensor, sizes: Tensor
    ) -> None:
        """Take what is trained.

        Args:
            own: (items, ...) parameters.
            depth: hidden layers.
            mask: (items, rows, 1), 0 where padded and else 1.
            share: (items, 1, rows), 0 where padded and else 1 / size.
            sizes: (items,) rows that are not padding.
        """
        self._own = own
        self._depth = depth
        self._mask = mask
        self._share = share
        self._sizes = sizes[:, None, None]
        self._saved: dict[int, tuple[Tensor, ...]] = {}

    def take(self, x: Tensor, targets: Tensor, rates: Tensor, decay: Tensor) -> None:
        """Update the parameters in place.

        Args:
            x: (items, rows, inputs).
            targets: (classes, items, rows, 1) one-hot labels.
            rates: (items, rows, 1) learning rate / size.
            decay: (items, 1, 1) factor of the weights.
        """
        own, last = self._own, self._depth + 1
        hidden = x
        for layer in range(1, last):
            hidden = self._forward(layer, hidden)
        weight, bias = own[f"weight{last}"], own[f"bias{last}"]
        logits = torch.baddbmm(bias[..., None], weight, hidden.transpose(1, 2))
        residual = softmax_residual_(logits.transpose(0, 1)[..., None], targets, rates)
        out = residual[..., 0].transpose(0, 1)  # (items, classes, rows)
        back = torch.bmm(out.transpose(1, 2), weight)
        weight.mul_(decay).baddbmm_(out, hidden, alpha=-1.0)
        bias.mul_(decay[..., 0]).sub_(out.sum(2))
        for layer in range(self._depth, 0, -1):
            back = self._backward(layer, back, decay)

    def _forward(self, layer: int, x: Tensor) -> Tensor:
        """Return the output of a hidden layer, and update its running statistics."""
        own, share = self._own, self._share
        mean = torch.bmm(share, x)
        x = torch.sub(x, mean).mul_(self._mask)
        weight = own[f"weight{layer}"]
        product = torch.bmm(x, weight)
        variance = torch.bmm(share, product.square())
        inverse = torch.rsqrt(variance + EPSILON)
        gain = own[f"scale{layer}"][:, None] * inverse
        hidden = torch.addcmul(own[f"shift{layer}"][:, None], product, gain).relu_()
        self._saved[layer] = (x, product, hidden, inverse, gain)
        unbiased = variance * (self._sizes / (self._sizes - 1).clamp(min=1))
        self._track(f"mean{layer}", torch.bmm(mean, weight)[:, 0] + own[f"bias{layer}"])
        self._track(f"variance{layer}", unbiased[:, 0])
        return hidden

    def _track(self, name: str, value: Tensor) -> None:
        momentum = MOMENTUM * (self._sizes[:, 0] > 1)
        self._own[name].mul_(1.0 - momentum).add_(value.mul_(momentum))

    def _backward(self, layer: int, back: Tensor, decay: Tensor) -> Tensor:
        """Update a hidden layer; return the gradient of its inputs."""
        own = self._own
        x, product, hidden, inverse, gain = self._saved[layer]
        back = _aten.threshold_backward(back, hidden, 0.0)
        shift = back.sum(1, keepdim=True)
        scale = (back * product).sum(1, keepdim=True)
        curve = gain * inverse.square() * scale / self._sizes
        slope = (back * gain).addcmul_(product, curve, value=-1.0)
        weight, into = own[f"weight{layer}"], back
        if layer > 1:  # inputs are centred: the mean of the slope changes no weight
            slope.addcmul_(self._mask, gain * shift / self._sizes, value=-1.0)
            into = torch.bmm(slope, weight.transpose(1, 2))
        weight.mul_(decay).baddbmm_(x.transpose(1, 2), slope, alpha=-1.0)
        factor = decay[..., 0]
        own[f"bias{layer}"].mul_(factor)
        own[f"shift{layer}"].mul_(factor).sub_(shift[:, 0])
        own[f"scale{layer}"].mul_(factor).sub_((inverse * scale)[:, 0])
        return into
