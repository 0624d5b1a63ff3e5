"""One seed, many independent named random streams."""

import operator
from zlib import crc32

import numpy as np

from fedhpo_gym.errors import InvalidArgumentError

_WORD = 2**32  # SeedSequence works on 32-bit words: a longer key could equal two shorter ones


def stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """Return the random stream that belongs to a seed, a name, and integer keys.

    The same arguments give the same stream in every process and on every machine; any
    other name or key gives an independent one, so new code never shifts old draws.

    Args:
        seed: Non-negative integer, the only source of randomness.
        name: What the stream is for, for example ``"client_sampling"``.
        *keys: Integers in ``[0, 2**32)`` that tell streams of one name apart (round, client).

    Raises:
        InvalidArgumentError: The seed or a key is not an integer in its range.
    """
    checked = [_checked("seed", seed, None)]
    checked += [_checked(f"keys[{i}]", key, _WORD) for i, key in enumerate(keys)]
    sequence = np.random.SeedSequence(
        checked[0], spawn_key=(crc32(name.encode("utf-8")), *checked[1:])
    )
    return np.random.Generator(np.random.PCG64(sequence))


def _checked(argument: str, value: int, end: int | None) -> int:
    """Return ``value`` as a built-in int in ``[0, end)``."""
    rule = "a non-negative integer" if end is None else f"an integer in [0, {end})"
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or (end is not None and number >= end):
        raise InvalidArgumentError(f"`{argument}` must be {rule}, got {value!r}.")
    return number
