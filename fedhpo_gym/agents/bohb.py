"""BOHB: Hyperband whose configurations come from a model of the good and the bad ones.

Falkner, Klein, Hutter, "BOHB: robust and efficient hyperparameter optimization at scale", ICML
2018, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.hyperband import Hyperband, Point, rounded
from fedhpo_gym.agents.ladder import ROUND
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Value

MIN_WIDTH = 2e-3
"""Smallest bandwidth, as a coordinate in [-1, 1]: without it, equal points would be a spike."""
LOWEST = math.log(1e-32)
"""Densities of the unit cube below e to this are equal: far from all bad points is not better."""


@dataclass(frozen=True)
class ModelSettings:
    """How BOHB draws configurations; the defaults are the paper's.

    Attributes:
        random_share: chance that a configuration is drawn from the prior.
        good_share: share of the configurations of a rung that counts as good.
        candidates: points drawn near good configurations, of which the likeliest is taken.
        widening: what bandwidths are multiplied by where candidates are drawn.

    Raises:
        InvalidArgumentError: a number is out of its range.
    """

    random_share: float = 1 / 3
    good_share: float = 0.15
    candidates: int = 64
    widening: float = 3.0

    def __post_init__(self) -> None:
        for name in ("random_share", "good_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(f"`{name}` must be in [0, 1], got {getattr(self, name)}")
        if self.candidates < 1 or not 0 < self.widening < math.inf:
            raise InvalidArgumentError(
                "`candidates` must be at least 1 and `widening` positive, got "
                f"candidates={self.candidates}, widening={self.widening}"
            )


class BOHB(Hyperband):
    """Hyperband that draws configurations where l(x) / g(x) is large.

    l and g are kernel densities of the good and the bad configurations of the highest rung that
    has seen enough of them; see `densities`. Differs from the paper and its authors' code: all
    coordinates are intervals, because the action codec has turned integers and grids into such.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
        model: ModelSettings | None = None,
    ) -> None:
        """Start as `Hyperband` does; `model` says how configurations are drawn."""
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        self._model = model or ModelSettings()
        self._model_rng = stream(self.seed, "bohb")

    def _draw(self, rung: int) -> Point:
        prior, pair = super()._draw(rung), self._densities()
        if pair is None or self._model_rng.random() < self._model.random_share:
            return prior
        return rounded(likeliest(pair, self._model, self._model_rng)[0])

    def _densities(self) -> tuple[Density, Density] | None:
        """Return l and g of the highest rung that has them."""
        width = self.action_space.shape[0] - len(self.fidelities)
        for seen in reversed(self._seen):
            pair = densities(seen, width + 1, self._model.good_share)
            if pair is not None:
                return pair
        return None


def densities(
    seen: Sequence[tuple[float, Point]], fewest: int, good_share: float
) -> tuple[Density, Density] | None:
    """Return the densities of good and of bad points; None where too few were seen.

    No point is both: there is no model before 2 `fewest` points, as in the authors' code.

    Args:
        seen: scores and points.
        fewest: of how many points a density is made, at least; N_min of the paper.
        good_share: of the points, those with the highest scores.
    """
    good = max(fewest, int(good_share * len(seen)))
    if len(seen) - good < fewest:
        return None
    order = sorted(seen, key=lambda one: -one[0])
    points = np.array([point for _, point in order])
    bad = max(fewest, int((1.0 - good_share) * len(seen)))
    return Density(points[:good]), Density(points[good : good + bad])


def likeliest(
    pair: tuple[Density, Density], model: ModelSettings, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return (candidates, n) points drawn near good ones, that with the largest l / g first."""
    good, bad = pair
    points = good.draw(model.candidates, model.widening, rng)
    ratios = np.maximum(good.log(points), LOWEST) - np.maximum(bad.log(points), LOWEST)
    return np.asarray(points[np.argsort(-ratios, kind="stable")])


class Density:
    """A product-kernel density of points in [-1, 1]^n, with Gaussian kernels.

    Bandwidths are 1.06 s m^(-1/(4 + n)) for m points of standard deviation s in a coordinate, the
    normal reference rule (Silverman, 1986).
    """

    def __init__(self, points: NDArray[np.float64]) -> None:
        """Fit the bandwidths.

        Args:
            points: (m, n).
        """
        number, size = points.shape
        rule = 1.06 * points.std(axis=0) * number ** (-1.0 / (4 + size))
        self._points = points
        self._widths = np.maximum(rule, MIN_WIDTH)

    def log(self, where: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (k,) logarithms of the density at (k, n) places, as one of the unit cube."""
        apart = (where[:, None] - self._points) / self._widths
        powers = -0.5 * (apart**2).sum(axis=2)
        top = powers.max(axis=1, keepdims=True)
        summed = np.log(np.exp(powers - top).mean(axis=1)) + top[:, 0]
        return np.asarray(summed - np.log(self._widths * math.sqrt(math.pi / 2.0)).sum())

    def draw(self, number: int, widening: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (number, n) points drawn with wider kernels, cut off at the edges of the box."""
        centres = self._points[rng.integers(len(self._points), size=number)]
        drawn = np.full(centres.shape, np.inf)
        while (outside := np.abs(drawn) > 1.0).any():
            fresh = centres + rng.standard_normal(centres.shape) * self._widths * widening
            drawn = np.where(outside, fresh, drawn)
        return drawn
