"""Model-based search: BOHB, kernel density search, and PriorBand with an expert's belief.

BOHB and PriorBand are `Hyperband` with another draw of new configurations; `KernelDensitySearch`
uses the model of BOHB at full fidelity. Points are (n,) coordinates in [-1, 1]^n. The model is a
pair of densities l and g of good and of bad points, and candidates maximise l / g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.multi_fidelity import ROUND, Hyperband, Point, round_to_float32
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import SearchSpace, Value

Quality = Literal["good", "bad"]
NEAR, FAR_DRAWS = 0.1, 50


def expert_prior(
    space: SearchSpace, optimum: Mapping[str, Any], quality: Quality, seed: int
) -> dict[str, Value]:
    """Return the optimum that an expert assumes (Mallik et al., 2023, Appendix D).

    A good prior is the optimum with normal noise of a twentieth of every range, a bad one the worst
    of 50 draws: the farthest from the optimum.
    """
    rng = stream(seed, "expert_prior")
    best = space.encode({k: v for k, v in optimum.items() if k in space}).astype(np.float64)
    if quality == "good":
        return space.decode(np.clip(best + NEAR * rng.standard_normal(len(best)), -1.0, 1.0))
    if quality == "bad":
        draws = rng.uniform(-1.0, 1.0, (FAR_DRAWS, len(best)))
        return space.decode(draws[np.argmax(np.abs(draws - best).sum(axis=1))])
    raise unknown_name("quality of a prior", quality, ("good", "bad"))


@dataclass(frozen=True, eq=False)
class Belief:
    """Normal distributions of a `width` around a `centre` (n,), cut off at the edges of [-1, 1]."""

    centre: NDArray[np.float64]
    width: float

    def draw(self, rng: np.random.Generator) -> NDArray[np.float64]:
        return _draw_inside(self.centre, self.width, rng)

    def density(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (m,) densities at (m, n) points of the box, up to a factor of the width and n."""
        distance = (points - self.centre) / self.width
        root = self.width * math.sqrt(2.0)
        masses = [
            0.5 * (math.erf((1.0 - x) / root) + math.erf((1.0 + x) / root))
            for x in self.centre.tolist()
        ]
        return np.asarray(np.exp(-0.5 * (distance**2).sum(axis=-1)) / math.prod(masses))


MIN_WIDTH = 2e-3
"""Smallest bandwidth, as a coordinate in [-1, 1]: without it, equal points would be a spike."""
LOWEST = math.log(1e-32)
"""Smallest log-density (unit cube): distance from all bad points is no advantage beyond it."""


RANDOM_SHARE, GOOD_SHARE = 1 / 3, 0.15
"""Chance that a configuration is drawn from the prior, and share of a rung that counts as good."""
CANDIDATES, WIDENING = 64, 3.0
"""Points drawn near good configurations, and the factor of bandwidths for these draws."""


class BOHB(Hyperband):
    """Hyperband that draws configurations where l(x) / g(x) is large.

    Falkner, Klein, Hutter, "BOHB: robust and efficient hyperparameter optimization at scale", ICML
    2018, Algorithm 2.

    l and g are kernel densities of the good and the bad configurations of the highest rung with
    enough of them. Differs from the paper and its authors' code: all coordinates are
    intervals, because the action codec has turned integers and grids into such.
    """

    def _begin(self) -> None:
        super()._begin()
        self._model_rng = stream(self.seed, "bohb")

    def _draw(self, rung: int) -> Point:
        prior, pair = super()._draw(rung), self._densities()
        if pair is None or self._model_rng.random() < RANDOM_SHARE:
            return prior
        return round_to_float32(draw_candidates(pair, self._model_rng)[0])

    def _densities(self) -> "tuple[Density, Density] | None":
        """Return l and g of the highest rung that has them."""
        for results in reversed(self._seen):
            pair = fit_densities(results, self.width + 1)
            if pair is not None:
                return pair
        return None


def fit_densities(
    results: Sequence[tuple[float, Point]], minimum: int
) -> "tuple[Density, Density] | None":
    """Return the densities of good and of bad points, no point being both; None of too few."""
    good = max(minimum, int(GOOD_SHARE * len(results)))
    if len(results) - good < minimum:
        return None
    points = np.array([point for _, point in sorted(results, key=lambda result: -result[0])])
    bad = max(minimum, int((1.0 - GOOD_SHARE) * len(results)))
    return Density(points[:good]), Density(points[good : good + bad])


def draw_candidates(
    pair: "tuple[Density, Density]", rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return (candidates, n) points drawn near good ones, the one of largest l / g first."""
    good, bad = pair
    points = good.draw(CANDIDATES, WIDENING, rng)
    ratios = np.maximum(good.log(points), LOWEST) - np.maximum(bad.log(points), LOWEST)
    return np.asarray(points[np.argsort(-ratios, kind="stable")])


class Density:
    """A product of Gaussian kernels over [-1, 1]^n, by the reference rule (Silverman, 1986)."""

    def __init__(self, points: NDArray[np.float64]) -> None:
        count, size = points.shape
        rule = 1.06 * points.std(axis=0) * count ** (-1.0 / (4 + size))
        self._points = points
        self._widths = np.maximum(rule, MIN_WIDTH)

    def log(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (k,) logarithms of the density at (k, n) places, as one of the unit cube."""
        powers = -0.5 * (((places[:, None] - self._points) / self._widths) ** 2).sum(axis=2)
        top = powers.max(axis=1, keepdims=True)
        log_means = np.log(np.exp(powers - top).mean(axis=1)) + top[:, 0]
        return np.asarray(log_means - np.log(self._widths * math.sqrt(math.pi / 2.0)).sum())

    def draw(self, count: int, widening: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (number, n) points drawn with wider kernels, cut off at the edges of the box."""
        centres = self._points[rng.integers(len(self._points), size=count)]
        return _draw_inside(centres, self._widths, rng, widening)


def _draw_inside(
    centres: NDArray[np.float64], widths: Any, rng: np.random.Generator, widening: float = 1.0
) -> NDArray[np.float64]:
    """Return normal draws around centres, drawn anew until all lie in [-1, 1]."""
    draws = np.full(centres.shape, np.inf)
    while (is_outside := np.abs(draws) > 1.0).any():
        fresh = centres + rng.standard_normal(centres.shape) * widths * widening
        draws = np.where(is_outside, fresh, draws)
    return draws


class KernelDensitySearch(TrialSearch):
    """Tries where the density of good trials, over that of bad ones, is largest.

    The model and its settings are those of `BOHB` (Falkner et al., 2018) and of FedHPO-Bench,
    Appendix C: 64 candidates, a third of random configurations, widening 3, and no bandwidth below
    0.001 of the range.

    Differs from the authors' library: grids are intervals here and lists of categories there, with
    kernels of their own, and no cell of a grid is tried twice while an untried one is drawn: to
    try it again would teach nothing. With budgets of some twenty trials, of which at least the
    first 2 (n + 1) and a third of the others are random, little is left to the model: it barely
    beats random search, as in FedHPO-Bench, where it wins on 7 problems of 20.
    """

    replays = False

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rng = stream(self.seed, "kernel_density", trial_index)
        width = self.action_space.shape[0]
        prior = rng.random((CANDIDATES, width))
        actions, scores = self.reported()
        points = 2.0 * self.to_unit(actions) - 1.0
        pair = fit_densities(list(zip(scores[:, 0].tolist(), points, strict=True)), width + 1)
        if pair is None or rng.random() < RANDOM_SHARE:
            return self.from_unit(self.first_untried(prior))
        candidates = (draw_candidates(pair, rng) + 1.0) / 2.0
        return self.from_unit(self.first_untried(np.concatenate([candidates, prior])))


WIDTH = 0.5
"""Standard deviation of a belief and of moves, in [-1, 1]: a quarter of the range."""
MOVED = 0.5
"""Chance that a coordinate of the incumbent is moved."""


class PriorBand(Hyperband):
    """Draws from the space, from a belief, or around the incumbent, with adaptive shares.

    Mallik, Bergman, Hvarfner, Stoll, Janowski, Lindauer, Nardi, Hutter, "PriorBand: practical
    hyperparameter optimization in the age of deep learning", NeurIPS 2023, Section 5.

    On rung r, counted from 0, a draw is uniform with probability 1 / (1 + eta^r). The rest belongs
    to the belief until a configuration has been on the highest rung, a rung has seen eta of them,
    and as many rounds were spent as one bracket of successive halving takes. From then on belief
    and incumbent share it by how likely each makes the best configurations seen, the better ones
    counting more. The incumbent is the best that was seen on any rung.

    As in the authors' code (NePS), the incumbent counts as a truncated normal distribution of the
    belief's width. Differs from that code: its conditions for using the incumbent follow its
    comments, because its count of spent rounds leaves out the lowest rung.

    Args:
        prior: the optimum that an expert assumes; by default the middle of the space.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        prior: Mapping[str, Any] | None = None,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        dimensions = tuple(
            d for d in problem.search_space.dimensions if d.name not in self.fidelities
        )
        space = SearchSpace(dimensions)
        if prior is not None and set(prior) != set(space.names):
            raise InvalidArgumentError(
                f"`prior` must name {list(space.names)}, got {sorted(prior)}."
            )
        centre = np.zeros(len(space)) if prior is None else space.encode(prior)
        self._belief = Belief(np.asarray(centre, dtype=np.float64), WIDTH)
        self._choices = stream(self.seed, "priorband")
        self._steps = np.diff(np.array(self.rungs, dtype=np.float64), prepend=0.0)
        top = len(self.rungs) - 1
        self._bracket_cost = float(self._steps @ [self._eta ** (top - r) for r in range(top + 1)])

    def _draw(self, rung: int) -> Point:
        rng = self._choices
        uniform, belief_share = self._draw_shares(rung)
        u = rng.random()
        if u < uniform:
            return super()._draw(rung)
        if u < uniform + belief_share:
            return round_to_float32(self._belief.draw(rng))
        best = self._incumbent()
        neighbour = Belief(best, WIDTH).draw(rng)
        return round_to_float32(np.where(rng.random(len(best)) < MOVED, neighbour, best))

    def _draw_shares(self, rung: int) -> tuple[float, float]:
        """Return the chances of a uniform draw and of one from the belief."""
        uniform = 1.0 / (1.0 + self._eta**rung)
        full_rungs = [results for results in self._seen if len(results) >= self._eta]
        # Rounds that were paid, as if every trial had resumed from the rung below.
        cost = float(self._steps @ [len(results) for results in self._seen])
        if not self._seen[-1] or not full_rungs or cost < self._bracket_cost:
            return uniform, 1.0 - uniform
        best = sorted(full_rungs[-1], key=lambda result: -result[0])[
            : len(full_rungs[-1]) // self._eta
        ]
        points = np.array([point for _, point in best])
        weights = np.arange(len(points), 0, -1, dtype=np.float64)
        for_belief = float(weights @ self._belief.density(points))
        for_incumbent = float(weights @ Belief(self._incumbent(), WIDTH).density(points))
        share = for_belief / (for_belief + for_incumbent) if for_belief + for_incumbent else 0.5
        return uniform, (1.0 - uniform) * share

    def _incumbent(self) -> Point:
        return max(
            (result for results in self._seen for result in results), key=lambda result: result[0]
        )[1]
