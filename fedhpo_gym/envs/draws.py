"""What is drawn for the coming episodes of N environments: their instances, and keys of noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, as_typed
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.arguments import read_options
from fedhpo_gym.evaluation.noise import STREAM

KEYS: Final = 2**32
"""Episodes are told apart by so many keys."""

Start = Callable[[int | None], np.random.Generator]


class EpisodeDraws:
    """Draws for each of N environments from streams of its own, which `reset` seeds."""

    def __init__(self, number: int, instances: int, start: Start, *, noisy: bool) -> None:
        """Prepare for N environments whose first `reset` is still to come."""
        self._instances, self._start, self._noisy = instances, start, noisy
        self._rngs: list[np.random.Generator | None] = [None] * number
        self._key_rngs: list[np.random.Generator | None] = [None] * number

    def draw(
        self,
        where: NDArray[np.intp],
        seeds: Sequence[int | None],
        options: Sequence[Mapping[str, Any] | None],
    ) -> tuple[list[int], NDArray[np.int64] | None]:
        """Return the instances and the keys of the next episodes of some environments."""
        keys = np.empty(len(where), dtype=np.int64)
        chosen: list[int] = []
        for row, index in enumerate(where.tolist()):
            if self._noisy:
                rng = _stream_of(self._key_rngs, index, seeds[row], partial(named_stream, STREAM))
                keys[row] = rng.integers(KEYS)
            if self._instances:
                rng = _stream_of(self._rngs, index, seeds[row], self._start)
                chosen.append(choose_instance(rng, self._instances, options[row]))
            else:
                read_options(options[row], ())
        return chosen, keys if self._noisy else None


def named_stream(name: str, seed: int | None) -> np.random.Generator:
    """Return the stream of a name and a seed; for None, the system chooses the seed."""
    return stream(int(seeding.np_random(None)[1] if seed is None else seed), name)


def unnamed_stream(seed: int | None) -> np.random.Generator:
    """Return the stream that Gymnasium gives an environment for a seed."""
    return seeding.np_random(seed)[0]


def _stream_of(
    rngs: list[np.random.Generator | None], index: int, seed: int | None, start: Start
) -> np.random.Generator:
    rng = rngs[index]
    if rng is None or seed is not None:
        rng = rngs[index] = start(seed)
    return rng


def choose_instance(
    rng: np.random.Generator, number: int, options: Mapping[str, Any] | None
) -> int:
    """Return the instance of the next episode: drawn, or as the options say."""
    chosen = read_options(options, ("instance",))
    if "instance" not in chosen:
        return int(rng.integers(number))
    among = Annotated[int, Range(0, number, "[)")]
    index: int = as_typed("options['instance']", chosen["instance"], among)
    return index
