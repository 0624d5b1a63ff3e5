"""Agents that act for every client, and the feedback that clients report.

FedEx, FTS, FedPop and FLoRA are built on these classes. `ArmAgent` chooses an arm of a finite grid
for each sampled client, `PointAgent` a point of the box. Environments must be made with
`per_client=True`: an action has one row per client, and `info` holds losses of each client before
and after its local training, from which `collect_feedback` makes a record per client.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Self, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem, Step
from fedhpo_gym.core.arrays import Floats, Integers, Singles
from fedhpo_gym.core.checks import Range
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

Positive: TypeAlias = Annotated[float, Range(0, math.inf, "()")]
PositiveInt: TypeAlias = Annotated[int, Range(1)]
Share: TypeAlias = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, eq=False)
class ArmGrid:
    """A product of factors; an action is the concatenation of one row of each.

    A list of configurations is one factor as wide as the action; a grid has one per coordinate.

    Attributes:
        factors: (arms, width) coordinates in [-1, 1] of each factor, in the action's order.
    """

    factors: tuple[Floats, ...]

    def __post_init__(self) -> None:
        if not self.factors:
            raise InvalidArgumentError("`factors` must hold at least one factor, got none.")
        for factor in self.factors:
            if factor.ndim != 2 or not factor.size or not np.all(np.abs(factor) <= 1.0):
                raise InvalidArgumentError(
                    "`factors` must be non-empty arrays of shape (arms, width) in [-1, 1], got "
                    f"{factor.tolist()}."
                )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(factor) for factor in self.factors)

    @property
    def width(self) -> int:
        return sum(factor.shape[1] for factor in self.factors)

    def actions(self, indices: ArrayLike) -> Singles:
        """Return the (..., width) actions of (..., factors) indices."""
        index = np.asarray(indices, dtype=np.int64)
        parts = [factor[index[..., i]] for i, factor in enumerate(self.factors)]
        return np.concatenate(parts, axis=-1).astype(np.float32)


def listed_arms(actions: ArrayLike) -> ArmGrid:
    """Return the arms that are the rows of `actions`: (arms, n)."""
    return ArmGrid((np.array(actions, dtype=np.float64),))


@dataclass(frozen=True)
class ArmFeedback:
    """One client's report of a round: its arms, losses (nats) before and after, and its weight.

    `after` of a client that diverged is a penalty.
    """

    arms: tuple[int, ...]
    before: float
    after: float
    weight: float = 1.0
    client: int = 0
    diverged: bool = False

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


def validate_arms(feedbacks: Sequence[ArmFeedback], sizes: Sequence[int]) -> Integers:
    """Return the arms that clients played: (clients, factors)."""
    for feedback in feedbacks:
        pairs = zip(feedback.arms, sizes, strict=False)
        if len(feedback.arms) != len(sizes) or not all(0 <= arm < size for arm, size in pairs):
            raise InvalidArgumentError(
                f"`arms` must be one index per factor below {list(sizes)}, got "
                f"{list(feedback.arms)}."
            )
    arms = [feedback.arms for feedback in feedbacks]
    return np.array(arms, dtype=np.int64).reshape(-1, len(sizes))


def normalised_weights(feedbacks: Sequence[ArmFeedback]) -> Floats:
    """Return the clients' weights divided by their sum: (clients,)."""
    if not feedbacks:
        raise InvalidArgumentError("`feedbacks` must hold at least one client's, got none.")
    weights = np.array([feedback.weight for feedback in feedbacks], dtype=np.float64)
    return np.asarray(weights / weights.sum())


def discounted_mean(values: Sequence[float], gamma: float) -> float:
    """Return the mean of `values` with weights gamma^age, 0 the age of the last one; 0^0 is 1."""
    if not values:
        raise InvalidArgumentError("`values` must hold at least one number, got none.")
    weights = gamma ** np.arange(len(values) - 1, -1, -1, dtype=np.float64)
    return float(weights @ np.asarray(values, dtype=np.float64) / weights.sum())


@dataclass
class Traces:
    """Statistics of every round so far; `entropy` and `mle` also hold the start.

    `before` and `after` local training are weighted mean losses of the clients (nats).
    """

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    mle: list[float] = field(default_factory=list)

    def baseline(self, gamma: float, diff: bool) -> float:
        """Return the discounted mean of past scores; 0 in the first round."""
        if not self.after:
            return 0.0
        past = np.subtract(self.after, self.before) if diff else np.asarray(self.after)
        return discounted_mean(past.tolist(), gamma)

    def advantages(self, feedbacks: Sequence[ArmFeedback], gamma: float, diff: bool) -> Floats:
        """Return (clients,) shares times (loss - past baseline), and note the round's means."""
        share = normalised_weights(feedbacks)
        before = np.array([feedback.before for feedback in feedbacks])
        after = np.array([feedback.after for feedback in feedbacks])
        weighted = share * ((after - before if diff else after) - self.baseline(gamma, diff))
        self.before.append(float(share @ before))
        self.after.append(float(share @ after))
        return weighted

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: [float(value) for value in values] for name, values in data.items()})


DIVERGED = 2.0
"""Factor of the highest loss of a step, which gives the loss of a client that diverged."""


def check_unit_rows(space: gym.spaces.Box) -> int:
    """Return the number of coordinates per client of a box in [-1, 1]."""
    if np.any(space.low != -1) or np.any(space.high != 1):
        raise InvalidArgumentError(f"`action_space` must be a box in [-1, 1], got {space}.")
    return int(space.shape[1])


def read_sampled_clients(observation: Observation) -> Integers:
    """Return the indices of the clients that train in the next step."""
    return np.flatnonzero(np.asarray(_entry(observation, "sampled", "observation")) > 0.5)


def collect_feedback(
    clients: Integers, arms: Integers, info: Mapping[str, Any]
) -> list[ArmFeedback]:
    """Return the reports of the k clients of one step; `arms` are (k, factors).

    Clients without validation data, or whose received model has no finite loss, are left out. One
    that diverged has the highest finite loss of the step times `DIVERGED`.
    """
    before, after, weight = (
        np.asarray(_entry(info, name, "info"), dtype=np.float64)[clients]
        for name in ("val_loss_before", "val_loss_after", "num_val_samples")
    )
    usable, diverged = np.isfinite(before) & (weight > 0), ~np.isfinite(after)
    if usable.any():
        finite = np.concatenate([before[usable], after[usable & ~diverged]])
        penalty = min(DIVERGED * max(float(finite.max()), 0.0), float(np.finfo(np.float64).max))
        after = np.where(diverged, penalty, after)
    return [
        ArmFeedback(
            arms=tuple(int(arm) for arm in arms[i]),
            before=float(before[i]),
            after=float(after[i]),
            weight=float(weight[i]),
            client=int(clients[i]),
            diverged=bool(diverged[i]),
        )
        for i in np.flatnonzero(usable)
    ]


def _entry(mapping: Mapping[str, Any], name: str, source: str) -> Any:
    if name not in mapping:
        raise InvalidArgumentError(
            f"`{source}` must have {name!r}, got {sorted(mapping)}; make the environment with "
            "per_client=True."
        )
    return mapping[name]


DEFAULT_ARMS: Final = 27
"""Number of arms in Khodak et al. (2021) and in FedHPO-Bench, Section 4.2."""


class ClientAgent(Agent):
    """Chooses a row in [-1, 1]^n for each client that trains."""

    acts_on = ("round",)
    per_client = True

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.width = check_unit_rows(self.action_space)
        self._clients = np.empty(0, dtype=np.int64)


class ArmAgent(ClientAgent):
    """Plays an arm on every sampled client, and learns from those that report.

    Rows of clients that are not sampled hold their likeliest arm; the environment ignores them.
    A step in which no client reports teaches nothing.

    Args:
        problem: its actions are (clients, n) in [-1, 1].
        arms: what it chooses from; by default 27 draws from the prior.
    """

    policy: Any  # learns the quality of arms; it has `update`, `to_dict` and `restore`

    def __init__(self, problem: SearchProblem, *, arms: ArmGrid | None = None) -> None:
        super().__init__(problem)
        draws = stream(self.seed, "arms").uniform(-1.0, 1.0, (DEFAULT_ARMS, self.width))
        self.arms = arms or listed_arms(draws)
        if self.arms.width != self.width:
            raise InvalidArgumentError(
                f"`arms` must have {self.width} coordinates, as the action space, got "
                f"{self.arms.width}."
            )
        self._rng = stream(self.seed, "arm_choice")
        self._played = np.empty((0, len(self.arms.sizes)), dtype=np.int64)

    @abstractmethod
    def choose(self, rng: np.random.Generator, clients: Integers) -> Integers:
        """Draw arms for some clients: (k,) indices -> (k, factors)."""

    @abstractmethod
    def likeliest(self) -> Integers:
        """Return the likeliest arm of every client: (clients, factors)."""

    def best_actions(self) -> Singles:
        """Return the likeliest arm of every client as an action: (clients, n)."""
        return self.arms.actions(self.likeliest())

    def _state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "policy": self.policy.to_dict()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.policy.restore(state["policy"])

    def ask(self, observation: Observation) -> Singles:
        self._clients = read_sampled_clients(observation)
        self._played = self.choose(self._rng, self._clients)
        action = self.best_actions()
        action[self._clients] = self.arms.actions(self._played)
        return action

    def tell(self, step: Step) -> None:
        if feedbacks := collect_feedback(self._clients, self._played, step.info):
            self.policy.update(feedbacks)


Point = Floats


class PointAgent(ClientAgent):
    """Chooses a point in [-1, 1]^n for each client that trains; others get the middle."""

    @abstractmethod
    def choose(self, clients: Integers) -> Point:
        """Return (k, n) points of k clients."""

    @abstractmethod
    def learn(self, points: Point, feedbacks: Sequence[ArmFeedback]) -> None:
        """Learn from the reports of at least one client; `points` are (clients, n)."""

    def ask(self, observation: Observation) -> Singles:
        self._clients = read_sampled_clients(observation)
        action = np.zeros(self.action_space.shape, dtype=np.float32)
        if len(self._clients):
            action[self._clients] = self.choose(self._clients)
        return action

    def tell(self, step: Step) -> None:
        no_arms = np.empty((len(self._clients), 0), dtype=np.int64)
        if feedbacks := collect_feedback(self._clients, no_arms, step.info):
            self.learn(np.asarray(step.action, dtype=np.float64), feedbacks)
