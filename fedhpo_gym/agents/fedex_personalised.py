"""Personalised FedEx: a hypernetwork gives every client its own distribution over the arms.

FedHPO-Bench (Wang et al., 2023) and its implementation in FederatedScope; trained with the
score-function estimator (Williams, 1992).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.clients import (
    ArmAgent,
    ArmFeedback,
    ArmGrid,
    Positive,
    Share,
    Traces,
    validate_arms,
)
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import CheckedFields, Range
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

Parameters = dict[str, Floats]


def initial_parameters(
    widths: Sequence[int], heads: Sequence[int], rng: np.random.Generator
) -> Parameters:
    """Draw weights and biases from U(-1/sqrt(inputs), 1/sqrt(inputs))."""
    shapes = {f"layer{i}": (widths[i + 1], widths[i]) for i in range(len(widths) - 1)}
    shapes |= {f"head{i}": (arms, widths[-1]) for i, arms in enumerate(heads)}
    parameters = {}
    for name, (outputs, inputs) in shapes.items():
        bound = 1.0 / np.sqrt(inputs)
        parameters[f"{name}.weight"] = rng.uniform(-bound, bound, (outputs, inputs))
        parameters[f"{name}.bias"] = rng.uniform(-bound, bound, outputs)
    return parameters


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Intermediate results of a forward pass for the backward pass: (clients, ...) per layer."""

    log_theta: list[Floats]
    inputs: list[Floats]
    spectra: list[tuple[float, Floats, Floats]]


def forward_pass(parameters: Parameters, encodings: Floats) -> ForwardPass:
    """Return log-probabilities of arms of clients with some (clients, width) encodings."""
    inputs, spectra = [encodings], []
    for i in range(_count(parameters, "layer")):
        weight = parameters[f"layer{i}.weight"]
        left_vectors, values, right_vectors = np.linalg.svd(weight, full_matrices=False)
        spectra.append((float(values[0]), left_vectors[:, 0], right_vectors[0]))
        outputs = inputs[-1] @ (weight / values[0]).T + parameters[f"layer{i}.bias"]
        inputs.append(np.maximum(outputs, 0.0))
    logits = [
        inputs[-1] @ parameters[f"head{i}.weight"].T + parameters[f"head{i}.bias"]
        for i in range(_count(parameters, "head"))
    ]
    return ForwardPass([_log_softmax(row) for row in logits], inputs, spectra)


def backward_pass(
    parameters: Parameters, pass_: ForwardPass, slopes: Sequence[Floats]
) -> Parameters:
    """Return the gradient of a loss by every parameter; `slopes` are its (clients, arms) ones."""
    gradients: Parameters = {}
    signal = np.zeros_like(pass_.inputs[-1])
    for i, (slope, log_theta) in enumerate(zip(slopes, pass_.log_theta, strict=True)):
        logits = slope - np.exp(log_theta) * slope.sum(axis=1, keepdims=True)
        gradients[f"head{i}.weight"] = logits.T @ pass_.inputs[-1]
        gradients[f"head{i}.bias"] = logits.sum(axis=0)
        signal = signal + logits @ parameters[f"head{i}.weight"]
    for i in reversed(range(len(pass_.spectra))):
        norm, left_vector, right_vector = pass_.spectra[i]
        signal = signal * (pass_.inputs[i + 1] > 0)
        normed = parameters[f"layer{i}.weight"] / norm
        outer = signal.T @ pass_.inputs[i]
        # The norm depends on the weights too: its gradient is the outer product of its vectors.
        projection = float((outer * normed).sum())
        gradients[f"layer{i}.weight"] = (
            outer - projection * np.outer(left_vector, right_vector)
        ) / norm
        gradients[f"layer{i}.bias"] = signal.sum(axis=0)
        signal = signal @ normed
    return gradients


@dataclass
class Adam:
    """Adam (Kingma and Ba, 2015) with weight decay added to the gradient, and its two moments."""

    learning_rate: float
    weight_decay: float
    steps: int = 0
    first: Parameters = field(default_factory=dict)
    second: Parameters = field(default_factory=dict)

    def step(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        self.steps += 1
        updated = {}
        for name, value in parameters.items():
            gradient = gradients[name] + self.weight_decay * value
            mean = 0.9 * self.first.get(name, 0.0) + 0.1 * gradient
            square = 0.999 * self.second.get(name, 0.0) + 0.001 * gradient**2
            self.first[name], self.second[name] = mean, square
            direction = mean / (1 - 0.9**self.steps)
            scale = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            updated[name] = value - self.learning_rate * direction / scale
        return updated

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "first": to_lists(self.first), "second": to_lists(self.second)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        moments = {name: from_lists(data[name]) for name in ("first", "second")}
        return cls(**{**data, **moments})


def to_lists(parameters: Mapping[str, Floats]) -> dict[str, Any]:
    """Return arrays as nested lists."""
    return {name: value.tolist() for name, value in parameters.items()}


def from_lists(data: Mapping[str, Any]) -> Parameters:
    """Return nested lists as arrays."""
    return {name: np.array(value, dtype=np.float64) for name, value in data.items()}


def _count(parameters: Parameters, kind: str) -> int:
    return sum(name.startswith(kind) and name.endswith("bias") for name in parameters)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


ENCODING: Final = 8
HIDDEN: Final = (64, 32)
MIN_LOG_THETA: Final = math.log(1e-8)
"""Arms less likely than this are not pushed any further."""


@dataclass(frozen=True)
class PersonalSettings(CheckedFields):
    """How the network learns.

    Attributes:
        learning_rate: of Adam; one step per round.
        weight_decay: of Adam.
        gamma: discount of the baseline, in [0, 1].
        diff: whether a client's score is its improvement instead of its loss after training.
    """

    learning_rate: Positive = 0.01
    weight_decay: Annotated[float, Range(0, math.inf, "[)")] = 1e-5
    gamma: Share = 0.0
    diff: bool = False


class PersonalPolicy:
    """Categorical distributions over the arms of each factor, of each client its own.

    Differs from the original: the spectral norm is exact, not one step of power iteration.

    Attributes:
        encodings: (clients, 8) fixed random inputs of the network.
        traces: losses of every round so far; entropies are not recorded.
    """

    def __init__(
        self,
        clients: int,
        sizes: Sequence[int],
        seed: int,
        settings: PersonalSettings | None = None,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if clients < 1 or not self.sizes or min(self.sizes) < 1:
            raise InvalidArgumentError(
                "`clients` and all `sizes` must be at least 1, got "
                f"clients={clients}, sizes={list(sizes)}."
            )
        self.settings = settings or PersonalSettings()
        rng = stream(seed, "personalised_fedex_network")
        self.encodings = rng.standard_normal((clients, ENCODING)) / np.sqrt(ENCODING)
        self.traces = Traces()
        self._parameters = initial_parameters((ENCODING, *HIDDEN), self.sizes, rng)
        self._adam = Adam(self.settings.learning_rate, self.settings.weight_decay)

    def log_theta(self, clients: ArrayLike) -> list[Floats]:
        """Return the log-probabilities of some clients' arms: (clients, arms) per factor."""
        return forward_pass(self._parameters, self.encodings[np.asarray(clients)]).log_theta

    def sample(self, rng: np.random.Generator, clients: ArrayLike) -> NDArray[np.int64]:
        """Draw arms for some clients: (clients, factors)."""
        # The largest of log-probabilities with Gumbel noise is a draw from them.
        noisy = [logs + rng.gumbel(size=logs.shape) for logs in self.log_theta(clients)]
        return np.stack([logs.argmax(axis=1) for logs in noisy], axis=1).astype(np.int64)

    def mle(self, clients: ArrayLike) -> NDArray[np.int64]:
        """Return some clients' likeliest arms: (clients, factors)."""
        return np.stack([logs.argmax(axis=1) for logs in self.log_theta(clients)], axis=1)

    def update(self, feedbacks: Sequence[ArmFeedback]) -> None:
        """Learn from one round, by one step down the gradient of the expected score."""
        arms = validate_arms(feedbacks, self.sizes)
        clients = [feedback.client for feedback in feedbacks]
        if unknown := [c for c in clients if not 0 <= c < len(self.encodings)]:
            raise InvalidArgumentError(
                f"`client` must be in [0, {len(self.encodings)}), got {unknown[0]}."
            )
        advantages = self.traces.advantages(feedbacks, self.settings.gamma, self.settings.diff)
        pass_ = forward_pass(self._parameters, self.encodings[clients])
        rows = np.arange(len(feedbacks))
        slopes = []
        for factor, logs in enumerate(pass_.log_theta):
            played = arms[:, factor]
            slope = np.zeros_like(logs)
            slope[rows, played] = advantages * (logs[rows, played] > MIN_LOG_THETA)
            slopes.append(slope)
        gradients = backward_pass(self._parameters, pass_, slopes)
        self._parameters = self._adam.step(self._parameters, gradients)

    def to_dict(self) -> dict[str, Any]:
        return {
            "encodings": self.encodings.tolist(),
            "parameters": to_lists(self._parameters),
            "adam": self._adam.to_dict(),
            "traces": asdict(self.traces),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on where the one was that returned `data`, with the same sizes and settings."""
        encodings = np.array(data["encodings"], dtype=np.float64)
        if encodings.shape != self.encodings.shape:
            raise InvalidArgumentError(
                f"`encodings` must have the shape {self.encodings.shape}, got {encodings.shape}; "
                "the saved policy is damaged."
            )
        self.encodings = encodings
        self._parameters = from_lists(data["parameters"])
        self._adam = Adam.from_dict(data["adam"])
        self.traces = Traces.from_dict(data["traces"])


class PersonalisedFedEx(ArmAgent):
    """FedEx with a distribution per client; see `PersonalPolicy` for what differs."""

    policy: PersonalPolicy

    def __init__(
        self,
        problem: SearchProblem,
        *,
        arms: ArmGrid | None = None,
        settings: PersonalSettings | None = None,
    ) -> None:
        super().__init__(problem, arms=arms)
        clients = self.action_space.shape[0]
        self.policy = PersonalPolicy(clients, self.arms.sizes, self.seed, settings)

    def choose(self, rng: np.random.Generator, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.policy.sample(rng, clients)

    def likeliest(self) -> NDArray[np.int64]:
        return self.policy.mle(np.arange(self.action_space.shape[0]))
