"""What an evaluation spends as objectives: privacy, simulated time, bytes, and computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.evaluation.records import SPLITS, Evaluations
from fedhpo_gym.objectives.base import Objective
from fedhpo_gym.objectives.privacy import CAP, PRIVACY_NAMES, PrivacyLedger, PrivacyLedgers, Spent

Costs = Mapping[str, float | NDArray[np.float64]]

COST_NAMES: Final = ("time_s", "upload_bytes", "download_bytes", "parameter_epochs", "energy_j")
"""What costs hold: three fields of `Cost`; the parameters of the model times the local epochs of a
client, times the clients that train in a round, times the rounds; and the joules that clients
need, NaN where no device model knows them."""
FLOPS_PER_PARAMETER: Final = 6
"""Floating point operations that a parameter and a sample cost: an addition and a multiplication
forward, and twice as many backward (Kaplan et al., 2020, Section 2.1)."""
ENERGY: Final = "energy_j"
"""The objective that only some device models know."""
MAX_BYTES: Final = 1e15
MAX_FLOPS: Final = 1e24
MAX_J: Final = 1e15
BUDGET_S: Final = 21_600.0
"""Bound of simulated time where no problem says its budget."""


class Spending(Spent):
    """The privacy and the costs of B whole queries; costs are computed when an objective asks."""

    def __init__(
        self, privacy: PrivacyLedger | PrivacyLedgers, find_costs: Callable[[], Costs]
    ) -> None:
        self._privacy, self._find = privacy, find_costs
        self._costs: Costs | None = None

    @property
    def privacy(self) -> PrivacyLedger | PrivacyLedgers:
        return self._privacy

    @property
    def costs(self) -> Costs:
        """The costs, by each of `COST_NAMES`."""
        if self._costs is None:
            self._costs = self._find()
        return self._costs


@checked_types
def privacy_objective(name: str) -> Objective:
    """Make the objective that minimizes one of ``PRIVACY_NAMES``."""
    require_known("privacy measure", name, PRIVACY_NAMES)
    position = PRIVACY_NAMES.index(name)

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.privacy.vector()[..., position])

    unit, high = ("1", 1.0) if name == "delta" else ("nats", CAP)
    return Objective(name, unit, True, (0.0, high), compute, sensitivity=np.zeros_like)


def cost_objective(name: str, unit: str, highest: float) -> Objective:
    """Make the objective that minimizes one of `COST_NAMES`."""
    require_known("cost", name, COST_NAMES)

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.costs[name], dtype=np.float64)

    return Objective(name, unit, True, (0.0, highest), compute, sensitivity=np.zeros_like)


def flops_objective() -> Objective:
    """Make the objective ``flops``: an estimate of what all clients compute in training.

    It is ``FLOPS_PER_PARAMETER`` times the parameters of the model, times all samples that are read
    (mean over clients and seeds). That is what layers of a perceptron cost. Layers that use a
    parameter several times per sample, such as convolutions, cost more.
    """

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        samples = evaluations.num_samples[..., SPLITS.index("train")].mean(axis=(-2, -1))
        epochs = np.full(len(evaluations), spent.costs["parameter_epochs"], dtype=np.float64)
        return np.asarray(epochs * (FLOPS_PER_PARAMETER * samples))

    bounds = (0.0, MAX_FLOPS)
    return Objective("flops", "FLOP", True, bounds, compute, sensitivity=np.zeros_like)


def cost_objectives(budget_s: float = BUDGET_S) -> tuple[Objective, ...]:
    """Make the objectives of costs."""
    return (
        cost_objective("time_s", "s", budget_s),
        cost_objective("upload_bytes", "bytes", MAX_BYTES),
        cost_objective("download_bytes", "bytes", MAX_BYTES),
        flops_objective(),
        cost_objective(ENERGY, "J", MAX_J),
    )


PRIVACY: Final[tuple[Objective, ...]] = tuple(privacy_objective(name) for name in PRIVACY_NAMES)
