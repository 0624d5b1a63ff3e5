"""The random streams of the trials of N episodes whose evaluations are noisy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.evaluation.noise import STREAM
from fedhpo_gym.seeding import streams


class TrialDraws:
    """Hands out one stream per trial, decided by the episode's key and the trial's number.

    Attributes:
        keys: (N,) keys of the episodes; see `NoiseKeys`.
    """

    def __init__(self, trials: NDArray[np.int64]) -> None:
        """Follow the numbers of the trials.

        Args:
            trials: (N,) trials since reset, which somebody else counts.
        """
        self._trials = trials
        self.keys = np.zeros(len(trials), dtype=np.int64)

    def of(self, where: Indices) -> list[np.random.Generator]:
        """Return the streams of the coming trials of some episodes."""
        pairs = zip(self.keys[where].tolist(), self._trials[where].tolist(), strict=True)
        return list(streams(STREAM, list(pairs)))
