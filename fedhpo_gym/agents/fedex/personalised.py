"""Personalised FedEx: a hypernetwork gives every client its own distribution over the arms.

FedHPO-Bench (Wang et al., 2023) and its implementation in FederatedScope; trained with the
score-function estimator (Williams, 1992).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.agents.arms.agent import ArmAgent
from fedhpo_gym.agents.arms.arms import Arms
from fedhpo_gym.agents.arms.feedback import ArmFeedback, Traces, checked_arms
from fedhpo_gym.agents.fedex.hypernetwork import (
    Adam,
    Array,
    arrays,
    backward,
    forward,
    initial_parameters,
    listed,
)
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

ENCODING: Final = 8
HIDDEN: Final = (64, 32)
MIN_LOG_THETA: Final = math.log(1e-8)
"""Arms less likely than this are not pushed any further."""


@dataclass(frozen=True)
class PersonalSettings:
    """How the network learns.

    Attributes:
        learning_rate: of Adam; one step per round.
        weight_decay: of Adam.
        gamma: discount of the baseline, in [0, 1].
        diff: whether a client's score is its improvement instead of its loss after training.

    Raises:
        InvalidArgumentError: a number is out of its range.
    """

    learning_rate: float = 0.01
    weight_decay: float = 1e-5
    gamma: float = 0.0
    diff: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise InvalidArgumentError(
                "`learning_rate` must be positive and `weight_decay` at least 0, got "
                f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}."
            )
        if not 0 <= self.gamma <= 1:
            raise InvalidArgumentError(f"`gamma` must be in [0, 1], got {self.gamma}.")


class PersonalPolicy:
    """Categorical distributions over the arms of each factor, of each client its own.

    Differs from the original: the spectral norm is exact, not one step of power iteration.

    Attributes:
        sizes: number of arms of each factor.
        settings: how it learns.
        encodings: (clients, 8) fixed random inputs of the network.
        traces: losses of every round so far; entropies are not recorded.

    Raises:
        InvalidArgumentError: there is no client or no arm.
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

    def log_theta(self, clients: ArrayLike) -> list[Array]:
        """Return the log-probabilities of some clients' arms: (clients, arms) per factor."""
        return forward(self._parameters, self.encodings[np.asarray(clients)]).log_theta

    def sample(self, rng: np.random.Generator, clients: ArrayLike) -> NDArray[np.int64]:
        """Draw arms for some clients: (clients, factors)."""
        chosen = []
        for logs in self.log_theta(clients):
            # The largest of log-probabilities with Gumbel noise is a draw from them.
            chosen.append((logs + rng.gumbel(size=logs.shape)).argmax(axis=1))
        return np.stack(chosen, axis=1).astype(np.int64)

    def mle(self, clients: ArrayLike) -> NDArray[np.int64]:
        """Return some clients' likeliest arms: (clients, factors)."""
        return np.stack([logs.argmax(axis=1) for logs in self.log_theta(clients)], axis=1)

    def update(self, feedbacks: Sequence[ArmFeedback]) -> None:
        """Learn from one round, by one step down the gradient of the expected score.

        Args:
            feedbacks: one per client that trained.

        Raises:
            InvalidArgumentError: there is no feedback, or it names clients or arms that do not
                exist.
        """
        arms = checked_arms(feedbacks, self.sizes)
        clients = [feedback.client for feedback in feedbacks]
        if unknown := [c for c in clients if not 0 <= c < len(self.encodings)]:
            raise InvalidArgumentError(
                f"`client` must be in [0, {len(self.encodings)}), got {unknown[0]}."
            )
        advantages = self.traces.advantages(feedbacks, self.settings.gamma, self.settings.diff)
        seen = forward(self._parameters, self.encodings[clients])
        rows = np.arange(len(feedbacks))
        slopes = []
        for factor, logs in enumerate(seen.log_theta):
            played = arms[:, factor]
            slope = np.zeros_like(logs)
            slope[rows, played] = advantages * (logs[rows, played] > MIN_LOG_THETA)
            slopes.append(slope)
        gradients = backward(self._parameters, seen, slopes)
        self._parameters = self._adam.step(self._parameters, gradients)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and state as plain JSON data, exactly."""
        return {
            "sizes": list(self.sizes),
            "settings": asdict(self.settings),
            "encodings": self.encodings.tolist(),
            "parameters": listed(self._parameters),
            "adam": self._adam.to_dict(),
            "traces": self.traces.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a policy from what `to_dict` returned; it goes on as if never interrupted."""
        encodings = np.array(data["encodings"], dtype=np.float64)
        policy = cls(len(encodings), data["sizes"], 0, PersonalSettings(**data["settings"]))
        policy.encodings = encodings
        policy._parameters = arrays(data["parameters"])
        policy._adam = Adam.from_dict(data["adam"])
        policy.traces = Traces.from_dict(data["traces"])
        return policy


class PersonalisedFedEx(ArmAgent):
    """FedEx with a distribution per client; see `PersonalPolicy` for what differs.

    Attributes:
        arms: what it chooses from.
        policy: what it has learned.

    Raises:
        InvalidArgumentError: the action space is no (clients, n) box in [-1, 1], or the arms have
            another width.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        arms: Arms | None = None,
        settings: PersonalSettings | None = None,
    ) -> None:
        super().__init__(problem, arms=arms)
        clients = self.action_space.shape[0]
        self.policy = PersonalPolicy(clients, self.arms.sizes, self.seed, settings)

    def choose(self, rng: np.random.Generator, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.policy.sample(rng, clients)

    def likeliest(self) -> NDArray[np.int64]:
        return self.policy.mle(np.arange(self.action_space.shape[0]))

    def learn(self, feedbacks: Sequence[ArmFeedback]) -> None:
        self.policy.update(feedbacks)

    def policy_state(self) -> dict[str, Any]:
        return self.policy.to_dict()

    def restore_policy(self, state: Mapping[str, Any]) -> None:
        self.policy = PersonalPolicy.from_dict(state)
