"""How long the episodes of round environments are, and what they reward: one checked record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedhpo_gym.core.checks import as_integer, as_number, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.envs.round import scales
from fedhpo_gym.evaluation.noise import Noise
from fedhpo_gym.objectives import Objective

MAX_ROUNDS: Final = 100_000
"""The longest horizon, and the longest history that is shown."""
LARGEST: Final = 1e30
"""The largest factor of a reward: rewards are finite as float32."""
SHORTEST_S: Final = 1e-6
"""The smallest budget, in simulated seconds."""


@dataclass(frozen=True)
class RoundSettings:
    """How long episodes are and what they reward.

    Attributes:
        rounds_per_step: k.
        horizon: rounds of an episode, a multiple of k.
        budget_s: simulated seconds after which an episode ends earlier.
        history: evaluations that are shown.
        potential: key of `scales.POTENTIALS`.
        rewards: entries of the reward vector; see `rewards.measured_objectives`.
        reward_scale: factor of the improvement.
        time_price: what the whole budget costs, in the unit of rewards.
        divergence_penalty: what divergence costs besides the lowest potential.
        noise: what evaluations lack; None for nothing.
        report_moves: whether steps tell how the model's moves agree.

    Raises:
        UnknownNameError: a name does not exist.
        InvalidArgumentError: a number is out of its range, or the noise needs what reports of
            clients do not say.
    """

    rounds_per_step: int
    horizon: int
    budget_s: float
    history: int = 5
    potential: str = "log_loss"
    rewards: tuple[str | Objective, ...] = ("improvement", "time")
    reward_scale: float = 1.0
    time_price: float = 0.1
    divergence_penalty: float = 1.0
    noise: Noise | None = None
    report_moves: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("rounds_per_step", "horizon", "history"):
            whole = as_integer(value := getattr(self, name))
            if whole is None or not 1 <= whole <= MAX_ROUNDS:
                raise InvalidArgumentError(
                    f"`{name}` must be an integer >= 1, at most {MAX_ROUNDS}, got {value!r}"
                )
            object.__setattr__(self, name, whole)
        if self.horizon % self.rounds_per_step:
            raise InvalidArgumentError(
                f"`horizon` must be a multiple of rounds_per_step={self.rounds_per_step}, "
                f"got {self.horizon}"
            )
        for name in ("budget_s", "reward_scale", "time_price", "divergence_penalty"):
            number = as_number(value := getattr(self, name))
            if number is None or not 0 <= number <= LARGEST:
                raise InvalidArgumentError(
                    f"`{name}` must be finite and >= 0, at most {LARGEST:g}, got {value!r}"
                )
            object.__setattr__(self, name, float(number))
        if self.budget_s < SHORTEST_S:
            raise InvalidArgumentError(
                f"`budget_s` must be positive, at least {SHORTEST_S:g}, got {self.budget_s!r}"
            )
        self._check_names()

    def _check_names(self) -> None:
        require_known("potential", self.potential, scales.POTENTIALS)
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
        """Names of the entries of the reward vector."""
        return tuple(one if isinstance(one, str) else one.name for one in self.rewards)

    @property
    def evaluations(self) -> int:
        """How many evaluations an episode has: of the first model, and after every step."""
        return 1 + self.horizon // self.rounds_per_step

    @property
    def told(self) -> tuple[str, ...]:
        """What is told of evaluations that withhold the rest: of `hearing.VALUES`."""
        names = ("val_error" if self.potential == "accuracy" else "val_loss",)
        return (*names, "fairness_std") if "fairness" in self.names else names
