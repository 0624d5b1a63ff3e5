"""What an objective is: a number with a direction, bounds, and a unit."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives.privacy import PrivacyLedger, PrivacyLedgers


@dataclass(frozen=True)
class Objective:
    """One named quantity of an evaluation.

    Whoever ranks configurations uses ``error`` or ``score``; nobody asks for the direction.

    ==========  ==============================  =================================
    ``value``   ``error`` (lower is better)     ``score`` (higher is better)
    ==========  ==============================  =================================
    minimized   value clipped to the bounds     its negative
    maximized   negative of the clipped value   value clipped to the bounds
    NaN         the error of the worst bound    the score of the worst bound
    ==========  ==============================  =================================

    Attributes:
        name: Key in results, for example ``"val_loss"``.
        unit: Unit of the value; ``"1"`` for a pure number.
        minimize: Whether lower values are better.
        bounds: Finite lowest and highest value that counts.
        compute: Reads the value off an evaluation and the privacy spent on it.
        compute_many: The same for B evaluations at once, bit for bit; without it, vector
            environments compute one evaluation after the other.

    Raises:
        InvalidArgumentError: The bounds are not finite or not in order.
    """

    name: str
    unit: str
    minimize: bool
    bounds: tuple[float, float]
    compute: Callable[[Evaluation, PrivacyLedger], float]
    compute_many: (
        Callable[[Evaluations, PrivacyLedger | PrivacyLedgers], NDArray[np.float64]] | None
    ) = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidArgumentError(
                f"Objective {self.name!r}: `bounds` must be finite and increasing, "
                f"got {self.bounds!r}."
            )

    def error(self, value: float) -> float:
        """Return ``value`` clipped to the bounds and signed so that lower is better."""
        low, high = self.bounds
        if math.isnan(value):
            value = high if self.minimize else low
        clipped = float(min(max(value, low), high))
        return clipped if self.minimize else -clipped

    def unclipped_error(self, value: float) -> float:
        """Return ``value`` signed so that lower is better, NaN as infinity: for ranking."""
        if math.isnan(value):
            return math.inf
        return value if self.minimize else -value

    def errors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ``error`` of each of (B,) values."""
        low, high = self.bounds
        values = np.where(np.isnan(values), high if self.minimize else low, values)
        clipped = np.where(values < low, low, np.where(values > high, high, values))
        return clipped if self.minimize else -clipped

    def unclipped_errors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ``unclipped_error`` of each of (B,) values."""
        return np.where(np.isnan(values), np.inf, values if self.minimize else -values)

    def score(self, value: float) -> float:
        """Return the negative of ``error``: higher is better."""
        return -self.error(value)
