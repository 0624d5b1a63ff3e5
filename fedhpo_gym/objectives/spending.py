"""The privacy spent as objectives: one per entry of the privacy vector."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives.base import Objective
from fedhpo_gym.objectives.privacy import CAP, PRIVACY_NAMES, PrivacyLedger, PrivacyLedgers


def privacy_objective(name: str) -> Objective:
    """Make the objective that minimizes one entry of the privacy vector.

    Args:
        name: One of ``PRIVACY_NAMES``.

    Raises:
        UnknownNameError: There is no such entry.
    """
    if name not in PRIVACY_NAMES:
        raise unknown_name("privacy measure", name, PRIVACY_NAMES)
    position = PRIVACY_NAMES.index(name)

    def compute(_evaluation: Evaluation, privacy: PrivacyLedger) -> float:
        return float(privacy.vector()[position])

    def compute_many(
        evaluations: Evaluations, privacy: PrivacyLedger | PrivacyLedgers
    ) -> NDArray[np.float64]:
        return np.full(len(evaluations.best), privacy.vector()[..., position])

    unit, high = ("1", 1.0) if name == "delta" else ("nats", CAP)
    return Objective(
        name, unit, True, (0.0, high), compute, compute_many, sensitivity=np.zeros_like
    )


PRIVACY: Final[tuple[Objective, ...]] = tuple(privacy_objective(name) for name in PRIVACY_NAMES)
