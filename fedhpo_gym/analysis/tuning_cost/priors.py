"""Priors of hyperparameters, calibrated on wide searches (Prabhu Teja S et al., 2020, section 4.2).

Runs within a fifth of the best of their problem are kept, pooled over problems, and each
hyperparameter is fitted by itself, by maximum likelihood. Logarithms have base 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Numbers, Vector
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types

MARGIN: Final = 0.2
"""How much worse than the best a run may be and still speak for its configuration."""

Family = Literal["uniform", "normal"]
Transform = Literal["none", "log10", "one_minus_log10"]


@dataclass(frozen=True)
class Prior:
    """A distribution of one hyperparameter.

    Attributes:
        family: of the transformed value: uniform on [a, b], or normal with mean a and deviation b.
        a: see `family`.
        b: see `family`.
        transform: "log10" for 10^z; "one_minus_log10" for 1 - 10^z, as betas of Adam have it.

    Raises:
        InvalidArgumentError: the ends are in the wrong order, or the deviation is negative.
    """

    family: Family
    a: float
    b: float
    transform: Transform = "none"

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not np.isfinite([self.a, self.b]).all() or self.b < (
            self.a if self.family == "uniform" else 0.0
        ):
            raise InvalidArgumentError(
                f"`a` and `b` must be finite, and ends in order or a mean and a deviation, "
                f"got {self.a!r} and {self.b!r}"
            )

    @classmethod
    def fit(cls, values: Numbers, family: Family, transform: Transform = "none") -> Prior:
        """Fit a distribution by maximum likelihood.

        Ends are the lowest and highest value; the deviation divides by n.

        Raises:
            InvalidArgumentError: there is no value, or one that the transform does not reach.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            z = _to_z(np.asarray(values, dtype=np.float64), transform)
        if not len(z) or not np.isfinite(z).all():
            raise InvalidArgumentError(
                f"`values` must not be empty and must be in the range of {transform!r}"
            )
        if family == "uniform":
            return cls(family, float(z.min()), float(z.max()), transform)
        return cls(family, float(z.mean()), float(z.std()), transform)

    def sample(self, rng: np.random.Generator, size: int) -> Numbers:
        """Draw values: (size,)."""
        draw = rng.uniform if self.family == "uniform" else rng.normal
        z: Numbers = np.asarray(draw(self.a, self.b, size))
        if self.transform == "none":
            return z
        return 10.0**z if self.transform == "log10" else 1.0 - 10.0**z


@checked_types
def near_best(losses: Numbers, margin: float = MARGIN) -> np.ndarray:
    """Return which runs come near the best: loss <= (1 + margin) best; (N,) of bool.

    Raises:
        InvalidArgumentError: there is no finite loss, or the lowest is negative.
    """
    best = float(np.min(losses, initial=np.inf))
    if not 0 <= best < np.inf:
        raise InvalidArgumentError(f"`losses` must have a lowest one that is not negative, {best}")
    return np.asarray(losses) <= (1 + margin) * best


@checked_types
def calibrate(
    searches: Sequence[tuple[Vector, Mapping[str, Vector]]],
    families: Mapping[str, tuple[Family, Transform]],
    margin: float = MARGIN,
) -> dict[str, Prior]:
    """Fit a prior of every hyperparameter on wide searches.

    Args:
        searches: of each problem, the losses (N,) and the values (N,) of every hyperparameter.
        families: of each hyperparameter, the distribution and its transform.
        margin: see `near_best`.

    Raises:
        InvalidArgumentError: a hyperparameter of `families` has no values in a search, or there
            are other numbers of them than losses, or no search; see `near_best` and `Prior.fit`.
    """
    if not searches:
        raise InvalidArgumentError("`searches` must hold at least one, got none")
    for losses, values in searches:
        for name in families:
            if name not in values or len(values[name]) != len(losses):
                raise InvalidArgumentError(
                    f"`searches` must have as many values of {name!r} as losses, {len(losses)}"
                )
    kept = [(near_best(losses, margin), values) for losses, values in searches]
    pooled = {
        name: np.concatenate([values[name][near] for near, values in kept]) for name in families
    }
    return {name: Prior.fit(pooled[name], *kind) for name, kind in families.items()}


def _to_z(values: Numbers, transform: Transform) -> Numbers:
    if transform == "none":
        return values
    result: Numbers = np.log10(values if transform == "log10" else 1.0 - values)
    return result
