"""A small network that maps a client's encoding to distributions over arms, with its gradients.

The architecture is that of personalised FedEx in FederatedScope: two spectrally normalised layers
with rectifiers, then one softmax per factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, Array]


def initial_parameters(
    widths: Sequence[int], heads: Sequence[int], rng: np.random.Generator
) -> Parameters:
    """Draw weights and biases from U(-1/sqrt(inputs), 1/sqrt(inputs)).

    Args:
        widths: size of the encoding, then of every hidden layer.
        heads: number of arms of each factor.
        rng: where they come from.

    Returns:
        `layer<i>.weight` (outputs, inputs), `layer<i>.bias` (outputs,), and the same for `head<i>`.
    """
    shapes = {f"layer{i}": (widths[i + 1], widths[i]) for i in range(len(widths) - 1)}
    shapes |= {f"head{i}": (arms, widths[-1]) for i, arms in enumerate(heads)}
    parameters = {}
    for name, (outputs, inputs) in shapes.items():
        bound = 1.0 / np.sqrt(inputs)
        parameters[f"{name}.weight"] = rng.uniform(-bound, bound, (outputs, inputs))
        parameters[f"{name}.bias"] = rng.uniform(-bound, bound, outputs)
    return parameters


@dataclass(frozen=True, eq=False)
class Forward:
    """What a pass through the network leaves for the way back.

    Attributes:
        log_theta: (clients, arms) of each factor.
        inputs: (clients, width) of each hidden layer, and last of the heads.
        spectra: for each hidden layer its largest singular value and the two singular vectors.
    """

    log_theta: list[Array]
    inputs: list[Array]
    spectra: list[tuple[float, Array, Array]]


def forward(parameters: Parameters, encodings: Array) -> Forward:
    """Return log-probabilities of the arms of some clients.

    Args:
        parameters: as `initial_parameters` returns them.
        encodings: (clients, width).
    """
    inputs, spectra = [encodings], []
    for i in range(_count(parameters, "layer")):
        weight = parameters[f"layer{i}.weight"]
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        spectra.append((float(values[0]), left[:, 0], right[0]))
        outputs = inputs[-1] @ (weight / values[0]).T + parameters[f"layer{i}.bias"]
        inputs.append(np.maximum(outputs, 0.0))
    logits = [
        inputs[-1] @ parameters[f"head{i}.weight"].T + parameters[f"head{i}.bias"]
        for i in range(_count(parameters, "head"))
    ]
    return Forward([_log_softmax(row) for row in logits], inputs, spectra)


def backward(parameters: Parameters, seen: Forward, slopes: Sequence[Array]) -> Parameters:
    """Return the gradient of a loss with respect to every parameter.

    Args:
        parameters: those of the pass.
        seen: what the pass left.
        slopes: (clients, arms) of each factor, the gradient with respect to `log_theta`.
    """
    gradients: Parameters = {}
    signal = np.zeros_like(seen.inputs[-1])
    for i, (slope, log_theta) in enumerate(zip(slopes, seen.log_theta, strict=True)):
        logits = slope - np.exp(log_theta) * slope.sum(axis=1, keepdims=True)
        gradients[f"head{i}.weight"] = logits.T @ seen.inputs[-1]
        gradients[f"head{i}.bias"] = logits.sum(axis=0)
        signal = signal + logits @ parameters[f"head{i}.weight"]
    for i in reversed(range(len(seen.spectra))):
        norm, left, right = seen.spectra[i]
        signal = signal * (seen.inputs[i + 1] > 0)
        normed = parameters[f"layer{i}.weight"] / norm
        outer = signal.T @ seen.inputs[i]
        # The norm depends on the weights too: its gradient is the outer product of its vectors.
        along = float((outer * normed).sum())
        gradients[f"layer{i}.weight"] = (outer - along * np.outer(left, right)) / norm
        gradients[f"layer{i}.bias"] = signal.sum(axis=0)
        signal = signal @ normed
    return gradients


@dataclass
class Adam:
    """Adam (Kingma and Ba, 2015) with weight decay added to the gradient.

    Attributes:
        learning_rate: step size.
        weight_decay: times the parameter, added to its gradient.
        steps: steps taken.
        first: running mean of the gradients, decay 0.9.
        second: running mean of their squares, decay 0.999.
    """

    learning_rate: float
    weight_decay: float
    steps: int = 0
    first: Parameters = field(default_factory=dict)
    second: Parameters = field(default_factory=dict)

    def step(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        """Return the parameters one step down the gradients."""
        self.steps += 1
        moved = {}
        for name, value in parameters.items():
            gradient = gradients[name] + self.weight_decay * value
            mean = 0.9 * self.first.get(name, 0.0) + 0.1 * gradient
            square = 0.999 * self.second.get(name, 0.0) + 0.001 * gradient**2
            self.first[name], self.second[name] = mean, square
            direction = mean / (1 - 0.9**self.steps)
            scale = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            moved[name] = value - self.learning_rate * direction / scale
        return moved

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
        return {
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "steps": self.steps,
            "first": listed(self.first),
            "second": listed(self.second),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the state from what `to_dict` returned."""
        moments = {name: arrays(data[name]) for name in ("first", "second")}
        return cls(data["learning_rate"], data["weight_decay"], data["steps"], **moments)


def listed(parameters: Mapping[str, Array]) -> dict[str, Any]:
    """Return arrays as nested lists."""
    return {name: value.tolist() for name, value in parameters.items()}


def arrays(data: Mapping[str, Any]) -> Parameters:
    """Return nested lists as arrays."""
    return {name: np.array(value, dtype=np.float64) for name, value in data.items()}


def _count(parameters: Parameters, kind: str) -> int:
    return sum(name.startswith(kind) and name.endswith("bias") for name in parameters)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
