"""Names of the random numbers of a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhpo_gym.core.seeding import stream


@dataclass(frozen=True)
class Draw:
    """Names the random numbers of a round: those of equal draws are equal.

    Attributes:
        seed: a seed.
        keys: what tells rounds of a seed apart.
    """

    seed: int
    keys: tuple[int, ...]

    def stream(self, name: str) -> np.random.Generator:
        """Return the round's stream of a name."""
        return stream(self.seed, name, *self.keys)
