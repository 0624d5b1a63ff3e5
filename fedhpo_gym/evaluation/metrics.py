"""What is measured of a model: names, units, directions and bounds, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedhpo_gym.core.errors import InvalidArgumentError


@dataclass(frozen=True)
class MetricSpec:
    """One quantity that an evaluation holds of every seed, client and split.

    Attributes:
        name: name on the metrics axis of an `Evaluation`.
        unit: unit of the values; "1" for a pure number.
        minimize: whether lower values are better.
        bounds: finite lowest and highest value that counts; what lies beyond is clipped where it
            is shown or scored.
        complement: name of the objective 1 - value, which takes the metric's place among the
            objectives; None where the objective is the metric itself.
        open_ended: whether there are worse values than the bounds say, as of a loss.

    Raises:
        InvalidArgumentError: the bounds are not finite or not in order.
    """

    name: str
    unit: str
    minimize: bool
    bounds: tuple[float, float]
    complement: str | None = None
    open_ended: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidArgumentError(
                f"metric {self.name!r}: `bounds` must be finite and increasing, got {self.bounds!r}"
            )

    @property
    def objective(self) -> str:
        """Name of its objective, behind the name of a split: `val_loss`."""
        return self.complement or self.name

    @property
    def worst(self) -> float:
        """The bound on the bad side."""
        return self.bounds[1] if self.minimize else self.bounds[0]


MAX_LOSS: Final = 10.0
"""Upper bound of a loss, in nats: a model with a larger one is as useless as this one."""

CLASSIFICATION: Final = (
    MetricSpec("loss", "nats", True, (0.0, MAX_LOSS), open_ended=True),
    MetricSpec("accuracy", "1", False, (0.0, 1.0), complement="error"),
    MetricSpec("f1", "1", False, (0.0, 1.0)),
)
"""What the engine measures of every model, in the order of the axis."""
