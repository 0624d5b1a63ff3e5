"""Perceptrons: that of the paper's MLP benchmarks, with batch normalisation, and one without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range

# Run records of user tasks hold a digest of the source of this class, names included.
from fedhpo_gym.core.checks import validate_call as checked_types
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.models.model import CompiledModel, padded

Size = Annotated[int, Range(1)]


class Perceptron(CompiledModel):
    """`model_depth` hidden layers of `model_width` units with batch normalisation before ReLU.

    Training normalises by the statistics of the minibatch; running statistics, `mean` and
    `variance`, serve evaluation, and the server averages them as it does everything else. A
    minibatch of one row has no variance and is left out. Weight decay applies to all trained
    parameters, as in `torch.optim.SGD`.

    Parameters: `weight` (1, inputs, width) and, for the last layer, (1, classes, width); all others
    (1, width) and (1, classes).
    """

    architecture: ClassVar[tuple[str, ...]] = ("model_depth", "model_width")
    min_rows: ClassVar[int] = 2
    normalised: ClassVar[bool] = True
    revision = 1

    @checked_types
    def __init__(
        self, num_inputs: int, num_classes: int, model_depth: Size, model_width: Size
    ) -> None:
        self.num_classes = num_classes
        self.depth, self.width = depth, width = model_depth, model_width
        self.inputs_of = (num_inputs, *[width] * depth)
        if self.normalised:
            self.buffers = frozenset(_names(depth, "mean", "variance"))
            self.norms = frozenset(_names(depth, "scale", "shift")) | self.buffers
        vectors = 1 + len(self.norms - self.buffers) // depth
        hidden = sum((inputs + vectors) * width for inputs in self.inputs_of[:depth])
        self.num_parameters = hidden + (width + 1) * num_classes

    @classmethod
    def for_federation(cls, federation: Federation, **shape: Any) -> Perceptron:
        depth, width = int(shape["model_depth"]), int(shape["model_width"])
        return cls(federation.features.shape[1], federation.num_classes, depth, width)

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

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the parameters' shapes in the order in which compiled code reads them."""
        found: dict[str, tuple[int, ...]] = {}
        for layer, inputs in enumerate(self.inputs_of[: self.depth], start=1):
            found[f"weight{layer}"] = (1, inputs, self.width)
            kinds = ("bias", "scale", "shift") if self.normalised else ("bias",)
            found |= {f"{kind}{layer}": (1, self.width) for kind in kinds}
        last = self.depth + 1
        found[f"weight{last}"] = (1, self.num_classes, self.width)
        found[f"bias{last}"] = (1, self.num_classes)
        for layer in range(1, last if self.normalised else 1):
            found |= {f"{kind}{layer}": (1, self.width) for kind in ("mean", "variance")}
        return found

    def data(self, federation: Federation) -> tuple[Any, ...]:
        from fedhpo_gym.fl.compiled.perceptron import Network

        features, inputs = federation.features, self.inputs_of[0]
        x = np.zeros((len(features), padded(inputs)), dtype=np.float32)
        x[:, :inputs] = features[np.arange(len(features))]
        return Network(
            x.ravel(),
            federation.labels.astype(np.int64),
            padded(inputs),
            padded(self.width),
            self.depth,
            self.num_classes,
            self.layout.trained,
            self.min_rows,
            self.normalised,
        )

    def memory(self, rows: int) -> int:
        from fedhpo_gym.fl.compiled.perceptron import memory

        inputs, width = padded(self.inputs_of[0]), padded(self.width)
        return memory(inputs, width, self.depth, self.num_classes, rows)


class PlainPerceptron(Perceptron):
    """A perceptron without batch normalisation: `Linear - ReLU` layers, then `Linear`."""

    min_rows = 1
    normalised = False
    revision = 2  # joint problems had the other one before


def _names(depth: int, *kinds: str) -> list[str]:
    return [f"{kind}{layer}" for kind in kinds for layer in range(1, depth + 1)]
