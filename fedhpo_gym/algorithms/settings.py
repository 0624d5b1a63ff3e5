"""Hyperparameters that are fixed before a course begins, and their ranges."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fedhpo_gym.core.checks import Range, coerce
from fedhpo_gym.core.errors import InvalidArgumentError


@dataclass(frozen=True)
class Setting:
    """A hyperparameter outside the search space."""

    default: float  # value of problems that do not say another
    low: float  # smallest value
    high: float  # largest value
    instead: str = ""  # the setting that decides where this one is 0, and means nothing elsewhere

    def validate(self, name: str, value: object) -> float:
        """Return a value, checked."""
        rule = Annotated[float, Range(self.low, self.high)]
        return float(coerce(f"setting {name!r}", value, rule))


TRAINING: Mapping[str, Setting] = {
    "learning_rate": Setting(math.nan, 0.0, 1e6),
    "weight_decay": Setting(0.0, 0.0, 1e6),
    "batch_size": Setting(math.nan, 1, 2**31 - 1),
    "step_size": Setting(1, 1, 10**6),
    "momentum": Setting(0.0, 0.0, 0.9999),
    "rate_decay": Setting(1.0, 1e-9, 1.0),
}
"""What local training reads of any model; most spaces search it. NaN: there is no default.

`momentum` is the share of a local step that the next one takes again; a round begins without.
`rate_decay` is the learning rate of the last round over that of the first; exponential in between.
"""


def check_settings(
    problem: str,
    extra: Mapping[str, Setting],
    searched: tuple[str, ...],
    settings: Mapping[str, object],
) -> dict[str, float]:
    """Return settings, checked: known, in their range, and not searched at the same time."""
    allowed = {**TRAINING, **extra}
    if not isinstance(settings, Mapping):
        raise InvalidArgumentError(
            f"`settings` must be a mapping from names to numbers, got {settings!r}"
        )
    checked = {}
    for name, value in settings.items():
        if name in searched:
            raise InvalidArgumentError(
                f"`settings` must be outside the search space {searched}, got {name}={value!r}"
            )
        if name not in allowed:
            free = ", ".join(sorted(set(allowed) - set(searched))) or "none"
            raise InvalidArgumentError(
                f"`settings` of {problem} must be among: {free}; got {name}={value!r}"
            )
        checked[name] = allowed[name].validate(name, value)
    return checked
