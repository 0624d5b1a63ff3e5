"""One seed, many independent named random streams."""

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import InvalidArgumentError

WORD_END = 2**32
"""Upper end of keys. A `SeedSequence` uses 32-bit words: a larger key would equal two others."""


def stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """Return the random stream of a seed, a name, and integer keys; it is equal on all machines.

    Another name or key gives an independent stream, so new code does not change existing draws.
    """
    checked = [_check_key("seed", seed, None)]
    checked += [_check_key(f"keys[{i}]", key, WORD_END) for i, key in enumerate(keys)]
    sequence = np.random.SeedSequence(
        checked[0], spawn_key=(crc32(name.encode("utf-8")), *checked[1:])
    )
    return np.random.Generator(np.random.PCG64(sequence))


def streams(name: str, keys: Sequence[tuple[int, ...]]) -> Iterator[np.random.Generator]:
    """Yield `stream(seed, name, *keys)` for many (seed, *keys), a dozen times as fast."""
    if len(keys) < _MIN_BATCH or any(seed >= WORD_END for seed, *_ in keys):
        for seed, *others in keys:
            yield stream(seed, name, *others)
        return
    checked = [
        (_check_key("seed", seed, WORD_END), *(_check_key("keys", key, WORD_END) for key in others))
        for seed, *others in keys
    ]
    yield from map(generator_from_words, seed_words(name, np.array(checked, dtype=np.uint32)))


def seed_words(name: str, keys: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the (n, 4) words from which streams start, for (n, k) seeds and keys.

    They equal `numpy.random.SeedSequence(seed, spawn_key=(crc32, *keys)).generate_state(4,
    np.uint64)`, which numpy guarantees not to change, but are computed for all keys at once. The
    hash is `seed_seq_fe` (M. E. O'Neill, "Developing a seed_seq Alternative", 2015).
    """
    columns = [keys[:, 0], *[np.zeros_like(keys[:, 0])] * (_POOL_SIZE - 1)]
    columns += [np.full_like(keys[:, 0], crc32(name.encode("utf-8"))), *keys[:, 1:].T]
    hash_in = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hash_in(column) for column in columns[:_POOL_SIZE]]
    for source in range(_POOL_SIZE):
        for target in range(_POOL_SIZE):
            if source != target:
                pool[target] = _mix(pool[target], hash_in(pool[source]))
    for column in columns[_POOL_SIZE:]:
        pool = [_mix(word, hash_in(column)) for word in pool]
    hash_out = _Hash(0x8B51F9DD, 0x58F38DED)
    halves = np.stack([hash_out(word) for word in (*pool, *pool)], axis=1).astype(np.uint64)
    return halves[:, ::2] | halves[:, 1::2] << np.uint64(32)


def generator_from_words(row: NDArray[np.uint64]) -> np.random.Generator:
    """Return the random stream that starts from one row of `seed_words`."""
    return np.random.Generator(np.random.PCG64(_SeedWords(row)))


class _SeedWords(np.random.SeedSequence):
    """Passes precomputed words to a bit generator."""

    def __init__(self, state: NDArray[np.uint64]) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        if n_words != len(self._state) or dtype is not np.uint64:
            raise InvalidArgumentError(
                f"`n_words` must be {len(self._state)} of uint64, got {n_words} of {dtype}"
            )
        return self._state


_MIN_BATCH = 32  # fewer streams are created faster one by one
_POOL_SIZE = 4  # words in which a `SeedSequence` keeps its entropy


class _Hash:
    """A hash of arrays of 32-bit words, whose constant changes at every call."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant = start
        self._factor = factor

    def __call__(self, column: NDArray[np.uint32]) -> NDArray[np.uint32]:
        hashed = column ^ np.uint32(self._constant)
        self._constant = self._constant * self._factor % WORD_END
        hashed *= np.uint32(self._constant)
        hashed ^= hashed >> np.uint32(16)
        return hashed


def _mix(word: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.uint32]:
    mixed: NDArray[np.uint32] = word * np.uint32(0xCA01F9DD) - other * np.uint32(0x4973F715)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def _check_key(argument: str, value: int, end: int | None) -> int:
    """Return `value` as a built-in int in [0, end)."""
    rule = "a non-negative integer" if end is None else f"an integer in [0, {end})"
    integer = as_integer(value)
    if integer is None or integer < 0 or (end is not None and integer >= end):
        raise InvalidArgumentError(f"`{argument}` must be {rule}, got {value!r}.")
    return integer
