"""FedEx: exponentiated gradients over arms that clients try side by side.

Khodak et al., "Federated hyperparameter tuning: challenges, baselines, and connections to
weight-sharing", NeurIPS 2021, Algorithm 2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np

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
from fedhpo_gym.core.arrays import Floats, Integers
from fedhpo_gym.core.checks import Range, check_fields
from fedhpo_gym.core.errors import InvalidArgumentError, require_known

Schedule = Literal["adaptive", "aggressive", "auto", "constant", "scale"]

MAX_LOG_IMPORTANCE: Final = 300.0
"""Importance weights 1/θ are at most e^300, so that gradients and their sums stay finite."""


@dataclass(frozen=True)
class FedExSettings:
    """How the policy learns.

    Attributes:
        schedule: what the step size eta0 is divided by, t being the round and g the gradient:
            adaptive: sqrt(sum over rounds of max|g|²); aggressive: max|g| of this round;
            auto: sqrt(t); constant: 1; scale: 1/sqrt(2 log n) for n arms.
        eta0: initial step size; None is sqrt(2 log n), for each factor its own.
        gamma: discount of the baseline, in [0, 1]: 0 is the last round, 1 the mean of all.
        diff: whether a client's score is its improvement instead of its loss after training.
        cutoff: entropy (nats) below which exploration stops for good; 0 never stops it.
    """

    schedule: Schedule = "auto"
    eta0: Positive | None = None
    gamma: Share = 0.0
    diff: bool = False
    cutoff: Annotated[float, Range(0, math.inf, "[)")] = 0.0

    def __post_init__(self) -> None:
        require_known("schedule", self.schedule, get_args(Schedule))
        check_fields(self)


class FedExPolicy:
    """Independent categorical distributions, one per factor, learned from clients' losses.

    One factor with k arms is a list of k configurations; several factors are a grid.

    The schedule by default is that of the authors' class; their experiments say "aggressive".

    Differs from the original: probabilities are kept as logarithms, so that none becomes 0 / 0 or
    0 * inf. Where an arm of vanished probability is played all the same, its importance weight is
    at most e^300: a bad outcome leaves it vanished, a good one gives it all the mass (among several
    such arms, to the best), as the formulas say; the original ends in NaN there.

    Attributes:
        traces: losses, entropy and certainty of every round so far.
        stopped: whether exploration has stopped; `sample` then returns `mle`.
    """

    def __init__(self, sizes: Sequence[int], settings: FedExSettings | None = None) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if not self.sizes or min(self.sizes) < 1:
            raise InvalidArgumentError(
                f"`sizes` must be the number of arms (at least 1) per factor, got {list(sizes)}."
            )
        self.settings = settings or FedExSettings()
        self.stopped = False
        self._logs = [np.full(size, -math.log(size)) for size in self.sizes]
        self._store = [0.0] * len(self.sizes)
        self.traces = Traces(entropy=[self.entropy()], mle=[self.certainty()])

    @property
    def theta(self) -> list[Floats]:
        """Probabilities of the arms of each factor: (arms,) each, summing to 1."""
        return [np.exp(logs) for logs in self._logs]

    def entropy(self) -> float:
        """Return the entropy of the product of all factors, in nats."""
        return float(sum(-(np.exp(logs) * logs).sum() for logs in self._logs)) + 0.0

    def certainty(self) -> float:
        return math.exp(sum(float(logs.max()) for logs in self._logs))

    def mle(self) -> tuple[int, ...]:
        return tuple(int(logs.argmax()) for logs in self._logs)

    def sample(self, rng: np.random.Generator, clients: int) -> Integers:
        """Draw arms for some clients, independently: (clients, factors)."""
        if self.stopped:
            return np.tile(np.array(self.mle(), dtype=np.int64), (clients, 1))
        return np.stack([_draw(theta, rng, clients) for theta in self.theta], axis=1)

    def update(self, feedbacks: Sequence[ArmFeedback]) -> None:
        arms = validate_arms(feedbacks, self.sizes)
        advantages = self.traces.advantages(feedbacks, self.settings.gamma, self.settings.diff)
        if self.stopped:
            self.traces.entropy.append(0.0)
            self.traces.mle.append(1.0)
            return
        for factor, logs in enumerate(self._logs):
            logs = logs - self._step(factor, _gradient(logs, arms[:, factor], advantages))
            highest = float(logs.max())
            total = highest + math.log(float(np.exp(logs - highest).sum()))
            self._logs[factor] = logs - total
        self.traces.entropy.append(self.entropy())
        self.traces.mle.append(self.certainty())
        self.stopped = self.traces.entropy[-1] < self.settings.cutoff

    def to_dict(self) -> dict[str, Any]:
        return {
            "log_theta": [logs.tolist() for logs in self._logs],
            "store": list(self._store),
            "stopped": self.stopped,
            "traces": asdict(self.traces),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on where the one was that returned `data`, with the same sizes and settings."""
        logs = [np.array(row, dtype=np.float64) for row in data["log_theta"]]
        if [len(row) for row in logs] != list(self.sizes):
            raise InvalidArgumentError(
                f"`log_theta` must have rows of {list(self.sizes)} numbers, got "
                f"{[len(row) for row in logs]}; the saved policy is damaged."
            )
        self._logs = logs
        self._store = [float(value) for value in data["store"]]
        self.stopped = bool(data["stopped"])
        self.traces = Traces.from_dict(data["traces"])

    def _step(self, factor: int, gradient: Floats) -> Floats:
        """Return the step of the schedule; dividing first, so that tiny gradients are safe."""
        natural = math.sqrt(2 * math.log(self.sizes[factor]))
        eta0 = natural if self.settings.eta0 is None else self.settings.eta0
        steepest = float(np.abs(gradient).max())
        match self.settings.schedule:
            case "adaptive":
                self._store[factor] = math.hypot(self._store[factor], steepest)
                return eta0 * (gradient / (self._store[factor] or 1.0))
            case "aggressive":
                return eta0 * (gradient / (steepest or 1.0))
            case "auto":
                self._store[factor] += 1.0
                return eta0 * (gradient / math.sqrt(self._store[factor]))
            case "constant":
                return eta0 * gradient
            case "scale":
                return eta0 * natural * gradient


def _draw(theta: Floats, rng: np.random.Generator, count: int) -> Integers:
    """Draw indices by inverting the cumulative sum, which needs no sum of exactly 1."""
    edges = np.cumsum(theta)
    indices = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    return np.asarray(np.minimum(indices, len(theta) - 1), dtype=np.int64)


def _gradient(logs: Floats, arms: Integers, advantages: Floats) -> Floats:
    """Return the importance-weighted estimate of the loss of each arm: (arms,)."""
    importance = np.exp(np.minimum(-logs[arms], MAX_LOG_IMPORTANCE))
    gradient = np.zeros_like(logs)
    np.add.at(gradient, arms, advantages * importance)
    return gradient


class FedEx(ArmAgent):
    """Khodak et al. (2021) on the rounds of one course; see `FedExPolicy` for what differs."""

    policy: FedExPolicy

    def __init__(
        self,
        problem: SearchProblem,
        *,
        arms: ArmGrid | None = None,
        settings: FedExSettings | None = None,
    ) -> None:
        super().__init__(problem, arms=arms)
        self.policy = FedExPolicy(self.arms.sizes, settings)

    def choose(self, rng: np.random.Generator, clients: Integers) -> Integers:
        return self.policy.sample(rng, len(clients))

    def likeliest(self) -> Integers:
        return np.tile(self.policy.mle(), (self.action_space.shape[0], 1))
