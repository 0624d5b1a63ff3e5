"""Population-based training: courses that copy better ones and perturb their hyperparameters.

Users call `evolve_population` themselves, because no command and no agent does. All members share
one environment: it is restored to the snapshot of a member, advances it, and takes a new snapshot.
Jaderberg et al., "Population based training of neural networks", 2017 (arXiv 1711.09846).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.clients import PositiveInt, Share
from fedhpo_gym.agents.fedpop import exploit
from fedhpo_gym.core.checks import Range, check_fields
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.space.dimension import Dimension, Value

Row = NDArray[np.float32]


@dataclass(frozen=True)
class PopulationSettings:
    """How a population evolves.

    Attributes:
        members: number of courses that are trained side by side.
        interval: steps between two exchanges.
        truncation: share of the population that is replaced, and share that replaces it.
        factors: factors, below and above 1, by which a value is multiplied if it is not resampled.
        resample: chance that a hyperparameter is drawn anew from its prior.
    """

    members: Annotated[int, Range(2)] = 10
    interval: PositiveInt = 1
    truncation: Annotated[float, Range(0, 0.5, "(]")] = 0.2
    factors: tuple[float, float] = (0.8, 1.2)
    resample: Share = 0.25

    def __post_init__(self) -> None:
        check_fields(self)
        down, up = self.factors
        if not 0 < down < 1 < up:
            raise InvalidArgumentError(f"`factors` must be around 1, got {self.factors}.")


def explore(
    space: SearchSpace, action: Row, settings: PopulationSettings, rng: np.random.Generator
) -> Row:
    """Return (n,) the action of a configuration with every value perturbed or drawn anew."""
    coordinates = []
    for dimension, coordinate in zip(space.dimensions, action.tolist(), strict=True):
        if rng.random() < settings.resample:
            coordinates.append(float(rng.uniform(-1.0, 1.0)))
        else:
            factor = settings.factors[int(rng.integers(2))]
            coordinates.append(dimension.encode(_perturb(dimension, coordinate, factor)))
    return np.array(coordinates, dtype=np.float32)


def _perturb(dimension: Dimension, coordinate: float, factor: float) -> Value:
    """Return the value times the factor, at least one step away if there is room."""
    value = dimension.decode(coordinate)
    step = 1 if factor > 1 else -1
    if dimension.kind == "category":  # categories have no ends: the step wraps around
        return dimension.grid[(dimension.index(value) + step) % len(dimension.grid)]
    if dimension.values is not None:
        points = dimension.values
        return points[min(max(points.index(value) + step, 0), len(points) - 1)]
    target = float(value) * factor
    if dimension.kind == "int":
        nearest = int(np.floor(target + 0.5))
        target = nearest if nearest != value else int(value) + step
    return min(max(target, dimension.low), dimension.high)


@dataclass(frozen=True, eq=False)
class Member:
    """A course, trained by an (n,) action, with the rewards so far, its ancestors' included."""

    action: Row
    score: float
    over: bool
    snapshot: Any


@dataclass(frozen=True, eq=False)
class Generation:
    """A population after `interval` steps, and the index of the member that each one continued."""

    members: tuple[Member, ...]
    parents: NDArray[np.int64]

    @property
    def best(self) -> Member:
        """The member with the highest score; the first of equals."""
        return max(self.members, key=lambda member: member.score)


def evolve_population(
    env: gym.Env[Any, Any],
    space: SearchSpace,
    seed: int,
    settings: PopulationSettings | None = None,
) -> Iterator[Generation]:
    """Train a population in one environment, by turns, until no member can take another step.

    This is no `Agent`, because it restores snapshots of several courses and an agent sees only one.

    All members start from the same reset, with configurations drawn from the prior.
    """
    options = settings or PopulationSettings()
    rng = stream(seed, "population")
    env.reset(seed=seed)
    start = _take_snapshot(env)
    members = [
        Member(rng.uniform(-1.0, 1.0, len(space)).astype(np.float32), 0.0, False, start)
        for _ in range(options.members)
    ]
    parents = np.arange(options.members)
    while not all(member.over for member in members):
        members = [_train_member(env, member, options.interval) for member in members]
        yield Generation(tuple(members), parents)
        parents = exploit([member.score for member in members], options.truncation, rng)
        members = [
            members[i]
            if parent == i
            else replace(
                members[parent], action=explore(space, members[parent].action, options, rng)
            )
            for i, parent in enumerate(parents)
        ]


def _train_member(env: gym.Env[Any, Any], member: Member, steps: int) -> Member:
    if member.over:
        return member
    env.unwrapped.restore(member.snapshot)  # type: ignore[attr-defined]
    score, over = member.score, False
    for _ in range(steps):
        _, reward, terminated, truncated, _ = env.step(member.action)
        score += float(reward)
        over = terminated or truncated
        if over:
            break
    return Member(member.action, score, over, _take_snapshot(env))


def _take_snapshot(env: gym.Env[Any, Any]) -> Any:
    if not hasattr(env.unwrapped, "snapshot"):
        raise InvalidArgumentError(
            f"`env` must have snapshot() and restore(), got {env}; use a FedHPO-DAC environment."
        )
    return env.unwrapped.snapshot()
