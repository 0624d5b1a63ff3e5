"""Noise of evaluations in both kinds of environments: what it needs to know, and its streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.noise import STREAM, Noise
from fedhpo_gym.objectives import Objective
from fedhpo_gym.seeding import stream

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


def check_noise(noise: Noise, objectives: Sequence[Objective], backend: str) -> None:
    """Refuse noise that the answers of a backend do not determine.

    Raises:
        InvalidArgumentError: says which part of the noise, and why.
    """
    for objective in objectives:
        if noise.private and objective.sensitivity is None:
            raise InvalidArgumentError(
                "`noise['epsilon']` needs to know how much one client can change an objective, but "
                f"{objective.name!r} has no known sensitivity; choose others, such as 'val_loss', "
                "or state the `sensitivity` of an objective of your own"
            )
        if noise.iid and objective.reads_clients and not _of_counts(objective.name):
            raise InvalidArgumentError(
                "`noise['iid']` deals out validation samples anew. Answers say of each client how "
                "many of its samples are right, but not the loss or the class of a sample, so "
                f"{objective.name!r} would not be known; use objectives=['val_error']"
            )
    if noise.iid and backend == "surrogate":
        raise InvalidArgumentError(
            "`noise['iid']` must be 0 for backend='surrogate': what it predicts of a client is no "
            "number of right answers; use a table or backend='raw'"
        )


def _of_counts(name: str) -> bool:
    """Return whether an objective reads nothing of clients but their validation accuracy."""
    return name == "val_error" or name.startswith("fairness_")
