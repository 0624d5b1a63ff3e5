"""Which random streams the noise of evaluations in N environments comes from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.noise import STREAM

KEYS = 2**32
"""Episodes are told apart by so many keys."""


class NoiseKeys:
    """Gives every episode of N environments a key; its streams have the key and a trial's number.

    The key of the first episode follows from the seed of `reset`, those of later ones from the same
    stream. So it does not matter whether an environment is alone or one of many.
    """

    def __init__(self, number: int) -> None:
        """Prepare for N environments whose first `reset` is still to come."""
        self._rngs: list[np.random.Generator | None] = [None] * number

    def draw(self, where: NDArray[np.intp], seeds: Sequence[int | None]) -> NDArray[np.int64]:
        """Return the keys of the next episodes of some environments.

        Args:
            where: which environments.
            seeds: of their `reset`; None goes on with the stream there is.
        """
        keys = np.empty(len(where), dtype=np.int64)
        for row, (index, seed) in enumerate(zip(where.tolist(), seeds, strict=True)):
            rng = self._rngs[index]
            if rng is None or seed is not None:
                chosen = seeding.np_random(None)[1] if seed is None else seed
                rng = self._rngs[index] = stream(int(chosen), STREAM)
            keys[row] = rng.integers(KEYS)
        return keys
