"""The random streams of the trials of N episodes whose evaluations are noisy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import streams
from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.evaluation.noise import STREAM


class TrialDraws:
    """Hands out one stream per trial, decided by the episode's key and the trial's number.

    Where a query that was paid for is free from then on, asking again tells nothing new: it has the
    stream of the first time. Else an agent could draw for nothing until it is lucky.
    """

    def __init__(self, trials: NDArray[np.int64], *, freeze_thaw: bool) -> None:
        """Follow the numbers of the trials.

        Args:
            trials: (N,) trials since reset, which somebody else counts.
            freeze_thaw: whether a repeated query costs nothing.
        """
        self._trials, self._freeze_thaw = trials, freeze_thaw
        self._keys = np.zeros(len(trials), dtype=np.int64)
        self._asked: list[dict[Hashable, int]] = [{} for _ in trials]

    def restart(self, where: Indices | slice, keys: NDArray[np.int64]) -> None:
        """Begin some episodes.

        Args:
            where: which ones.
            keys: their keys; see `NoiseKeys`.
        """
        self._keys[where] = keys
        for index in np.arange(len(self._asked))[where].tolist():
            self._asked[index] = {}

    def of(self, where: Indices, queries: Sequence[Hashable]) -> list[np.random.Generator]:
        """Return the streams of the coming trials of some episodes.

        Args:
            where: (n,) which episodes.
            queries: what each of them asks; equal ones are equal questions.
        """
        numbers = self._trials[where].tolist()
        if self._freeze_thaw:
            each = zip(where.tolist(), queries, numbers, strict=True)
            numbers = [
                self._asked[index].setdefault(query, number) for index, query, number in each
            ]
        return list(streams(STREAM, list(zip(self._keys[where].tolist(), numbers, strict=True))))
