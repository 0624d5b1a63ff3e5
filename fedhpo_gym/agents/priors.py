"""What an expert believes: where good configurations lie, and such beliefs made from the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.seeding import stream
from fedhpo_gym.space import SearchSpace, Value

Quality = Literal["good", "bad"]
NEAR, FAR_DRAWS = 0.1, 50


def expert_prior(
    space: SearchSpace, optimum: Mapping[str, Any], quality: Quality, seed: int
) -> dict[str, Value]:
    """Return the configuration that an expert of some quality believes in.

    As in PriorBand (Mallik et al., 2023, Appendix D): a good expert names the optimum, moved by
    normal noise of a twentieth of every range. A bad expert names the worst of 50 draws, where
    worst is farthest from the optimum: the values of the others are not known to every problem.

    Args:
        space: of configurations.
        optimum: as `fedhpo_gym.truth(id).optimum` tells it; what else it names is left out.
        quality: "good" or "bad".
        seed: decides the noise.

    Raises:
        UnknownNameError: no such quality.
        InvalidArgumentError: the optimum is not in the space.
    """
    rng = stream(seed, "expert_prior")
    best = space.encode({k: v for k, v in optimum.items() if k in space}).astype(np.float64)
    if quality == "good":
        return space.decode(np.clip(best + NEAR * rng.standard_normal(len(best)), -1.0, 1.0))
    if quality == "bad":
        draws = rng.uniform(-1.0, 1.0, (FAR_DRAWS, len(best)))
        return space.decode(draws[np.argmax(np.abs(draws - best).sum(axis=1))])
    raise unknown_name("quality of a prior", quality, ("good", "bad"))


class Belief:
    """Independent normal distributions around a point, cut off at the edges of [-1, 1]."""

    def __init__(self, centre: NDArray[np.float64], width: float) -> None:
        """Take the (n,) point and the standard deviation."""
        self.centre, self.width = centre, width

    def draw(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (n,) a point."""
        drawn = np.full(self.centre.shape, np.inf)
        while (outside := np.abs(drawn) > 1.0).any():
            fresh = self.centre + self.width * rng.standard_normal(len(self.centre))
            drawn = np.where(outside, fresh, drawn)
        return drawn

    def density(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (m,) densities at (m, n) points of the box, up to a factor of the width and n.

        What is cut off at the edges is missing: near a corner, the density within is higher.
        """
        apart = (points - self.centre) / self.width
        root = self.width * math.sqrt(2.0)
        inside = [
            0.5 * (math.erf((1.0 - x) / root) + math.erf((1.0 + x) / root))
            for x in self.centre.tolist()
        ]
        return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=-1)) / math.prod(inside))
