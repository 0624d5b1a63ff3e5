"""The actions and rewards of round environments: `Controls` and `RoundSettings`.

`RoundArguments` creates both, and `RoundProcess` uses them in every step. `Controls` maps actions
to hyperparameters; those that no action sets have fixed values. `RoundSettings` holds the length of
episodes and the parameters of rewards. The improvement in a reward is the difference of two
potentials, so that the improvements of an episode add up to the last potential minus the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, check_fields, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, unknown_name
from fedhpo_gym.evaluation.noise import Noise
from fedhpo_gym.objectives import CAP, MAX_LOSS, Objective
from fedhpo_gym.space import INACTIVE, Dimension, SearchSpace, Value
from fedhpo_gym.space.per_client import base_name, client_key, split_key
from fedhpo_gym.systems import Work
from fedhpo_gym.tasks import Task, work_of

MAX_ROUNDS: Final = 100_000
"""Largest horizon, and largest history of an observation."""
LARGEST: Final = 1e30
"""Largest factor of a reward, so that rewards are finite as float32."""
SHORTEST_S: Final = 1e-6
"""The smallest budget, in simulated seconds."""
AMOUNTS: Final = ("upload", "download", "flops", "energy")
"""Costs that a reward measures as a share of the most that an episode can cost."""
REWARDS: Final = ("improvement", "time", *AMOUNTS, "fairness")
"""Entries of a reward vector (`RoundEnv`); other entries are objectives of the model."""

DECADES = 3.0
"""Losses are clipped to within a factor of 10^3 of chance level, either way."""

Rounds: TypeAlias = Annotated[int, Range(1, MAX_ROUNDS)]
Factor: TypeAlias = Annotated[float, Range(0, LARGEST)]


def decades(loss: NDArray[np.floating], chance: float) -> Floats:
    """Return log10(loss / chance), clipped to +-`DECADES`."""
    ratio = np.maximum(np.asarray(loss, dtype=np.float64) / chance, 1e-300)
    return np.log10(ratio).clip(-DECADES, DECADES)


@dataclass(frozen=True)
class Potential:
    """Value of a course's state, from loss, accuracy and chance loss; `low` if it diverged."""

    measure: Callable[[Floats, Floats, float], Floats]
    low: float
    high: float


POTENTIALS: Mapping[str, Potential] = {
    "log_loss": Potential(lambda loss, _, chance: -decades(loss, chance), -DECADES, DECADES),
    "loss": Potential(lambda loss, *_: -np.minimum(loss, MAX_LOSS), -MAX_LOSS, 0.0),
    "accuracy": Potential(lambda _, accuracy, __: accuracy, 0.0, 1.0),
}
"""Potentials by name: minus the decades above chance, minus the loss in nats, the accuracy."""


@dataclass(frozen=True)
class RoundSettings:
    """Length and rewards of episodes; `RoundArguments` describes the fields."""

    rounds_per_step: Rounds
    horizon: Rounds
    budget_s: Annotated[float, Range(SHORTEST_S, LARGEST)]
    history: Rounds = 5
    potential: str = "log_loss"
    rewards: tuple[str | Objective, ...] = ("improvement", "time")
    reward_scale: Factor = 1.0
    time_price: Factor = 0.1
    divergence_penalty: Factor = 1.0
    epsilon: Annotated[float, Range(0, CAP, "(]")] | None = None
    noise: Noise | None = None
    report_moves: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("budget_s", "reward_scale", "time_price", "divergence_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))  # large int: no int64
        if self.horizon % self.rounds_per_step:
            raise InvalidArgumentError(
                f"`horizon` must be a multiple of rounds_per_step={self.rounds_per_step}, "
                f"got {self.horizon}"
            )
        require_known("potential", self.potential, POTENTIALS)
        if not self.rewards:
            raise InvalidArgumentError("`rewards` must hold at least one name, got none")
        if len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(
                f"`rewards` must be a list of different names, got {short_repr(self.names)}"
            )
        if self.noise is not None and self.noise.iid and self.potential != "accuracy":
            raise InvalidArgumentError(
                "`noise['iid']` redistributes validation samples. Clients report how many of them "
                "are correct, but not the loss of each; use potential='accuracy', got "
                f"{self.potential!r}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward if isinstance(reward, str) else reward.name for reward in self.rewards)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of an episode: of the first model, and after every step."""
        return 1 + self.horizon // self.rounds_per_step

    @property
    def reported_names(self) -> tuple[str, ...]:
        """Names of the values that are reported where noise withholds the others."""
        names = ("val_error" if self.potential == "accuracy" else "val_loss",)
        return (*names, "fairness_std") if "fairness" in self.names else names


def measured_objectives(task: Task, rewards: Sequence[str | Objective]) -> tuple[Objective, ...]:
    """Return the objectives among the entries of a reward vector."""
    by_name = {name: reward for name, reward in task.objectives.items() if reward.reads_clients}
    measured = []
    for reward in rewards:
        if isinstance(reward, Objective):
            if by_name.get(reward.name, reward) is not reward or reward.name in REWARDS:
                raise InvalidArgumentError(
                    "a custom objective must have a new name, got "
                    f"{reward.name!r}, which round environments have"
                )
            measured.append(reward)
        elif reward not in REWARDS:
            if reward not in by_name:
                raise unknown_name("reward", reward, (*REWARDS, *by_name))
            measured.append(by_name[reward])
    if "energy" in rewards:
        task.system.require_energy(asynchronous=task.asynchronous)
    if "flops" in rewards and task.asynchronous:
        raise InvalidArgumentError(
            "`rewards` must not hold 'flops' for asynchronous algorithms, because the number of "
            f"jobs of a client in a round is unknown, got {task.algorithm!r}; leave it out"
        )
    return tuple(measured)


RATE = "client_sample_rate"


class Controls:
    """The hyperparameters of a course: those that an action sets, and fixed ones."""

    def __init__(
        self,
        task: Task,
        *,
        dynamic: Sequence[str] | None = None,
        configuration: Mapping[str, Value] | None = None,
        client_sample_rate: float | None = None,
        per_client: bool = False,
    ) -> None:
        rate = task.fidelity_space[RATE]
        dimensions = _rows(task) if per_client else task.space.dimensions
        offered = {d.name: d for d in (*dimensions, rate)}
        free = [
            d.name
            for d in dimensions
            # A running course cannot change the shape of its model.
            if d.name not in task.architecture and (d.scope == "client" or not per_client)
        ]
        names = free if dynamic is None else list(dynamic)
        if isinstance(dynamic, str) or not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"`dynamic` must be a list of distinct names, at least one, got {dynamic!r}"
            )
        for name in names:
            require_known("hyperparameter", name, offered)
            if name not in free and (per_client or name != RATE):
                raise InvalidArgumentError(
                    f"`dynamic` cannot hold {name!r}, which shapes the model or belongs to the "
                    f"server; it can hold {free}"
                )
        share = rate.high if client_sample_rate is None else client_sample_rate
        self._whole = SearchSpace(tuple(offered.values()))
        self.fixed = _fixed(self._whole, names, {RATE: share}, configuration or {})
        self.space = self._whole.fix(self.fixed)
        if silent := [name for name in names if name not in self.space]:
            raise InvalidArgumentError(
                f"`dynamic` must leave out names that are inactive under {dict(self.fixed)}, got "
                f"{silent}"
            )
        self.num_rows = task.num_clients if per_client else None
        shape = (len(self.space),) if self.num_rows is None else (self.num_rows, len(self.space))
        self.action_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self._task = task
        # The configuration at the centre of the action space.
        self.default: Mapping[str, Value] = self._named([INACTIVE] * len(self.space))

    @property
    def size(self) -> int:
        return int(np.prod(self.action_space.shape))

    def decode(self, action: NDArray[np.floating]) -> dict[str, Value]:
        """Return all hyperparameters under an action; `name@i` is the value for client i only."""
        coordinates = action.tolist()
        if self.num_rows is None:
            return self._named(coordinates)
        configuration = dict(self.default)
        for client, row in enumerate(coordinates):
            values = self._named(row)
            names = [name for name in self.space.names if name in values]
            configuration.update({client_key(name, client): values[name] for name in names})
        return configuration

    def _named(self, coordinates: Sequence[float]) -> dict[str, Value]:
        """Return the values at coordinates of `space`, together with fixed ones."""
        free = dict(zip(self.space.names, coordinates, strict=True))
        configuration: dict[str, Value] = {}
        for d in self._whole.dimensions:
            if d.is_active(configuration):
                configuration[d.name] = (
                    d.decode(free[d.name]) if d.name in free else self.fixed[d.name]
                )
        return configuration

    def largest_work(self, rounds: int, num_samples: NDArray[np.integer] | None = None) -> Work:
        """Return the most expensive work of some rounds over all actions."""
        dearest = dict(self.default)
        # Smaller minibatches mean more steps; in asynchronous training, fewer clients at a time
        # mean a longer wait for enough reports.
        low = ("batch_size", RATE) if self._task.asynchronous else ("batch_size",)
        for d in self.space.dimensions:
            dearest[d.name] = d.low if base_name(d.name) in low else d.high
        rate = float(dearest[RATE])
        return work_of(self._task, dearest, rounds, rate, num_samples=num_samples)


def _fixed(
    space: SearchSpace,
    dynamic: Sequence[str],
    defaults: Mapping[str, Value],
    configuration: Mapping[str, Value],
) -> dict[str, Value]:
    """Return values of hyperparameters that actions do not set, without those never active."""
    for name in configuration:
        require_known("hyperparameter", name, space)
    if clashes := [name for name in configuration if name in dynamic]:
        raise InvalidArgumentError(
            f"`configuration` must leave out what actions set, got {clashes}; leave them out of "
            "`dynamic` to fix them"
        )
    fixed: dict[str, Value] = {}
    for d in space.dimensions:
        value = {**defaults, **configuration}.get(d.name, d.decode(0.0))
        checked = d.validate(value, "configuration")
        may_mean = d.is_active(fixed) or (d.active is not None and d.active[0] in dynamic)
        if d.name not in dynamic and may_mean:
            fixed[d.name] = checked
    return fixed


def _rows(task: Task) -> tuple[Dimension, ...]:
    """Return the dimensions of one client, in which all `name@i` are one `name`."""
    rows: dict[str, Dimension] = {}
    for dimension in task.space.dimensions:
        name, client = split_key(dimension.name)
        row = replace(dimension, name=name)
        if rows.setdefault(name, row) != row:
            raise InvalidArgumentError(
                f"`per_client` must be False for {task.name}: {name!r} of client {client} has "
                "another range than that of client 0, so that rows would have different meanings"
            )
    return tuple(rows.values())
