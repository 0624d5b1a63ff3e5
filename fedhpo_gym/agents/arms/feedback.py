"""What clients report after a round, and the running baseline that policies subtract from it.

Shared by FedEx and its personalised form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError


@dataclass(frozen=True)
class ArmFeedback:
    """One client's answer of one round.

    Attributes:
        arms: index of the arm played, one per factor.
        before: validation loss of the received model, before local training (nats).
        after: the same loss after local training (nats).
        weight: size of the client's validation set; only shares matter.
        client: index of the client; only personalised policies look at it.

    Raises:
        InvalidArgumentError: a loss is not finite, or the weight is not finite and positive.
    """

    arms: tuple[int, ...]
    before: float
    after: float
    weight: float = 1.0
    client: int = 0

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidArgumentError(
                    f"`{name}` must be a finite loss, got {getattr(self, name)}; leave clients "
                    "that diverged out, or give them a finite penalty."
                )
        if not 0 < self.weight < math.inf:
            raise InvalidArgumentError(
                f"`weight` must be finite and positive, got {self.weight}; leave clients without "
                "validation data out."
            )


def checked_arms(feedbacks: Sequence[ArmFeedback], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the arms that clients played: (clients, factors).

    Args:
        feedbacks: one per client.
        sizes: number of arms of each factor.

    Raises:
        InvalidArgumentError: an arm does not exist.
    """
    for feedback in feedbacks:
        pairs = zip(feedback.arms, sizes, strict=False)
        if len(feedback.arms) != len(sizes) or not all(0 <= arm < size for arm, size in pairs):
            raise InvalidArgumentError(
                f"`arms` must be one index per factor below {list(sizes)}, got "
                f"{list(feedback.arms)}."
            )
    arms = [feedback.arms for feedback in feedbacks]
    return np.array(arms, dtype=np.int64).reshape(-1, len(sizes))


def shares(feedbacks: Sequence[ArmFeedback]) -> NDArray[np.float64]:
    """Return the clients' weights divided by their sum: (clients,).

    Raises:
        InvalidArgumentError: there is no feedback.
    """
    if not feedbacks:
        raise InvalidArgumentError("`feedbacks` must hold at least one client's, got none.")
    weights = np.array([feedback.weight for feedback in feedbacks], dtype=np.float64)
    return np.asarray(weights / weights.sum())


def discounted_mean(values: Sequence[float], gamma: float) -> float:
    """Return the mean of `values` with weights gamma^age, the last one's age being 0.

    0^0 counts as 1, so gamma = 0 is the last value and gamma = 1 the plain mean.

    Raises:
        InvalidArgumentError: there are no values.
    """
    if not values:
        raise InvalidArgumentError("`values` must hold at least one number, got none.")
    weights = gamma ** np.arange(len(values) - 1, -1, -1, dtype=np.float64)
    return float(weights @ np.asarray(values, dtype=np.float64) / weights.sum())


@dataclass
class Traces:
    """What happened in every round so far; `entropy` and `mle` also hold the start.

    Attributes:
        before: weighted mean loss of the clients before local training, one per round (nats).
        after: the same after local training.
        entropy: entropy of the policy (nats), one more than rounds.
        mle: probability of the likeliest arms, one more than rounds.
    """

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    mle: list[float] = field(default_factory=list)

    def baseline(self, gamma: float, diff: bool) -> float:
        """Return the discounted mean of past scores; 0 in the first round.

        Args:
            gamma: discount in [0, 1].
            diff: whether a score is `after - before` and not `after`.
        """
        if not self.after:
            return 0.0
        past = np.subtract(self.after, self.before) if diff else np.asarray(self.after)
        return discounted_mean(past.tolist(), gamma)

    def advantages(
        self, feedbacks: Sequence[ArmFeedback], gamma: float, diff: bool
    ) -> NDArray[np.float64]:
        """Return (clients,) shares times (score - baseline), then append the round's means.

        The baseline is that of the rounds before this one. Lower is better, as for losses.

        Raises:
            InvalidArgumentError: there is no feedback.
        """
        share = shares(feedbacks)
        before = np.array([feedback.before for feedback in feedbacks])
        after = np.array([feedback.after for feedback in feedbacks])
        weighted = share * ((after - before if diff else after) - self.baseline(gamma, diff))
        self.before.append(float(share @ before))
        self.after.append(float(share @ after))
        return weighted

    def to_dict(self) -> dict[str, list[float]]:
        """Return the traces as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild traces from what `to_dict` returned."""
        return cls(**{name: [float(value) for value in values] for name, values in data.items()})
