"""How long the episodes of round environments are, and what they reward: one checked record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, check_fields, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, unknown_name
from fedhpo_gym.evaluation.noise import Noise
from fedhpo_gym.objectives import FLOPS_PER_PARAMETER, MAX_LOSS, Objective
from fedhpo_gym.systems import Work
from fedhpo_gym.tasks import Task

MAX_ROUNDS: Final = 100_000
"""The longest horizon, and the longest history that is shown."""
LARGEST: Final = 1e30
"""The largest factor of a reward: rewards are finite as float32."""
SHORTEST_S: Final = 1e-6
"""The smallest budget, in simulated seconds."""
AMOUNTS: Final = ("upload", "download", "flops", "energy")
"""What is priced by its share in the most that an episode can cost of it."""
REWARDS: Final = ("improvement", "time", *AMOUNTS, "fairness")
"""Entries of a reward vector (`RoundEnv`); others are objectives that are read off the model."""

DECADES = 3.0
"""Losses are told apart within a factor of 10^3 of chance level, either way."""

Numbers = NDArray[np.float64]
Rounds: TypeAlias = Annotated[int, Range(1, MAX_ROUNDS)]
Factor: TypeAlias = Annotated[float, Range(0, LARGEST)]


def decades(loss: NDArray[np.floating], chance: float) -> Numbers:
    """Return log10(loss / chance), clipped to +-`DECADES`."""
    ratio = np.maximum(np.asarray(loss, dtype=np.float64) / chance, 1e-300)
    return np.clip(np.log10(ratio), -DECADES, DECADES)


@dataclass(frozen=True)
class Potential:
    """How good a state of a course is, of loss, accuracy and chance; `low` if it diverged."""

    measure: Callable[[Numbers, Numbers, float], Numbers]
    low: float
    high: float


POTENTIALS: Mapping[str, Potential] = MappingProxyType(
    {
        "log_loss": Potential(lambda loss, _, chance: -decades(loss, chance), -DECADES, DECADES),
        "loss": Potential(lambda loss, *_: -np.minimum(loss, MAX_LOSS), -MAX_LOSS, 0.0),
        "accuracy": Potential(lambda _, accuracy, __: accuracy, 0.0, 1.0),
    }
)
"""Potentials by name: minus the decades above chance, minus the loss in nats, the accuracy."""


@dataclass(frozen=True)
class RoundSettings:
    """How long episodes are and what they reward, as `RoundArguments` says."""

    rounds_per_step: Rounds
    horizon: Rounds
    budget_s: Annotated[float, Range(SHORTEST_S, LARGEST)]
    history: Rounds = 5
    potential: str = "log_loss"
    rewards: tuple[str | Objective, ...] = ("improvement", "time")
    reward_scale: Factor = 1.0
    time_price: Factor = 0.1
    divergence_penalty: Factor = 1.0
    noise: Noise | None = None
    report_moves: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("budget_s", "reward_scale", "time_price", "divergence_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))  # numpy reads 64 bits only
        if self.horizon % self.rounds_per_step:
            raise InvalidArgumentError(
                f"`horizon` must be a multiple of rounds_per_step={self.rounds_per_step}, "
                f"got {self.horizon}"
            )
        self._check_names()

    def _check_names(self) -> None:
        require_known("potential", self.potential, POTENTIALS)
        if not self.rewards:
            raise InvalidArgumentError("`rewards` must hold at least one name, got none")
        if len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(
                f"`rewards` must be a list of different names, got {shown(self.names)}"
            )
        if self.noise is not None and self.noise.iid and self.potential != "accuracy":
            raise InvalidArgumentError(
                "`noise['iid']` deals out validation samples anew. Clients report how many of them "
                "are right, but not the loss of each; use potential='accuracy', got "
                f"{self.potential!r}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else one.name for one in self.rewards)

    @property
    def evaluations(self) -> int:
        """How many evaluations an episode has: of the first model, and after every step."""
        return 1 + self.horizon // self.rounds_per_step

    @property
    def told(self) -> tuple[str, ...]:
        """Which of `noise.VALUES` evaluations tell where they withhold the rest."""
        names = ("val_error" if self.potential == "accuracy" else "val_loss",)
        return (*names, "fairness_std") if "fairness" in self.names else names


def measured_objectives(task: Task, rewards: Sequence[str | Objective]) -> tuple[Objective, ...]:
    """Return the objectives among the entries of a reward vector."""
    known = {name: one for name, one in task.objectives.items() if one.reads_clients}
    found = []
    for one in rewards:
        if isinstance(one, Objective):
            if one.name in known or one.name in REWARDS:
                raise InvalidArgumentError(
                    "an objective of your own must have a name of its own, got "
                    f"{one.name!r}, which round environments have"
                )
            found.append(one)
        elif one not in REWARDS:
            if one not in known:
                raise unknown_name("reward", one, (*REWARDS, *known))
            found.append(known[one])
    if "energy" in rewards:
        task.system.require_energy(asynchronous=task.asynchronous)
    if "flops" in rewards and task.asynchronous:
        raise InvalidArgumentError(
            "`rewards` must not hold 'flops' for asynchronous algorithms, of whose rounds nobody "
            f"says how often a client trained, got {task.algorithm!r}; leave it out"
        )
    return tuple(found)


def amounts(task: Task, work: Work, upload_bytes: float, download_bytes: float) -> Numbers:
    """Return bytes, operations and joules of some work, as `AMOUNTS`; 0 where nobody knows."""
    samples = work.samples_read
    flops = 0.0 if samples is None else FLOPS_PER_PARAMETER * work.num_parameters * samples
    known = task.system.knows_energy and not work.reports
    energy_j = task.system.energy_j(work) if known else 0.0
    return np.array([upload_bytes, download_bytes, flops, energy_j])


def fall_of(objectives: Sequence[Objective], before: Numbers, after: Numbers) -> dict[str, Numbers]:
    """Return by name what the (N,) errors of objectives have fallen by, from their values."""
    return {
        one.name: one.errors(before[:, column]) - one.errors(after[:, column])
        for column, one in enumerate(objectives)
    }
