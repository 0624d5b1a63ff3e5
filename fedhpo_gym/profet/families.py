"""Families of HPO tasks that Profet learns from (Klein et al., 2019), and the one with a formula.

Names of axes: T tasks, N configurations, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, check_fields, checked_types
from fedhpo_gym.core.errors import InvalidArgumentError, needing
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension, SearchSpace

with needing("a family of Profet", "scipy", "agents", "scipy"):
    from scipy.stats import qmc

Array = NDArray[np.float64]
LEAST: Final = 1e-3
"""Errors nearer to 0 or 1 than this count as so far away where their log-odds are learned."""


def _log_odds(errors: Array) -> Array:
    inside = np.clip(errors, LEAST, 1.0 - LEAST)
    return np.asarray(np.log(inside / (1.0 - inside)))


LINKS: Final[Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]] = {
    "identity": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "logit": (_log_odds, lambda odds: 1.0 / (1.0 + np.exp(-odds))),
}
"""What is learned of values, and how to come back."""
DOMAINS: Final = {
    "identity": (-math.inf, math.inf), "log": (math.ulp(0.0), math.inf), "logit": (0.0, 1.0),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Family:
    """The same configurations, evaluated in several tasks; lower values are better.

    Attributes:
        space: original ranges; a point of [0, 1] is at coordinate 2x - 1 of its dimension.
        x: (N, D) points of the unit cube.
        values: (T, N) what is minimised.
        costs: (T, N) positive seconds, or None.
        tasks: (T,) names.
        origin: where the numbers are from.
        latent: Q, how many latent dimensions a task has.
        link: of values, a key of `LINKS`: what the model learns.
        widths: units of the hidden layers of the network.
    """

    name: str
    space: SearchSpace
    x: Array
    values: Array
    costs: Array | None
    tasks: tuple[str, ...]
    origin: str
    latent: Annotated[int, Range(1)] = 5
    link: Literal["identity", "log", "logit"] = "identity"
    widths: tuple[int, ...] = (500, 500)

    def __post_init__(self) -> None:
        check_fields(self)
        shape = (len(self.tasks), len(self.x))
        _check("x", self.x, (shape[1], len(self.space)), (0.0, 1.0))
        _check("values", self.values, shape, DOMAINS[self.link])
        if self.costs is not None:
            _check("costs", self.costs, shape, DOMAINS["log"])


def _check(name: str, found: Array, shape: tuple[int, ...], ends: tuple[float, float]) -> None:
    low, high = ends
    fits = found.size and found.shape == shape and np.isfinite(found).all()
    if not fits or found.min() < low or found.max() > high:
        seen = f", {found.min()} to {found.max()}" if found.size else ""
        raise InvalidArgumentError(
            f"`{name}` must be finite numbers of shape {shape} in [{low}, {high}], got "
            f"{found.shape}{seen}; leave out what has none, or scale them"
        )


def sobol_points(number: int, space: SearchSpace, seed: int) -> Array:
    """Return (N, D) points of a scrambled Sobol sequence."""
    power = max(number - 1, 1).bit_length()
    drawn = qmc.Sobol(len(space), rng=stream(seed, "profet-points")).random_base2(power)
    return np.asarray(drawn[:number], dtype=np.float64)


LINE: Final = SearchSpace((Dimension("x", 0.0, 1.0, "float"),))


@checked_types
def forrester(
    tasks: Annotated[int, Range(1)] = 9,
    seed: int = 0,
    *,
    highest: tuple[float, float] = (1.0, 1.0),
    points: Annotated[int, Range(2)] = 100,
) -> Family:
    """Return functions (alpha x - 2)^2 sin(beta x - 4) of the paper on a Sobol grid.

    Alpha and beta are uniform from 0 to their `highest`: above 1, some have several minima.
    """
    x = sobol_points(points, LINE, seed)
    alpha, beta = (stream(seed, "forrester").random((tasks, 2)) * highest).T[..., None]
    values = (alpha * x[:, 0] - 2.0) ** 2 * np.sin(beta * x[:, 0] - 4.0)
    names, origin = tuple(map(str, range(tasks))), f"computed, {highest=}"
    return Family("forrester", LINE, x, values, None, names, origin, 2, widths=(100,))
