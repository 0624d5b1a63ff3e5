"""The streams of `fedhpo_gym.core.seeding`, bit for bit, in compiled code.

numpy promises that its seeding (`SeedSequence`) and its generator (`PCG64`) stay as they are. The
hash is that of `seed_seq_fe` (M. E. O'Neill, "Developing a seed_seq Alternative", 2015), the
generator PCG XSL RR 128/64 (O'Neill, 2014). A shuffle draws by rejection from 32-bit halves.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.compiled.jit import compiled

POOL = 4
"""Words in which a `SeedSequence` keeps its entropy."""
STATE = 6
"""Words of a stream: position, increment, and half a word that is left over."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_HIGH_FACTOR, _LOW_FACTOR = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_SHIFT = np.uint32(16)
_IN, _IN_FACTOR = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_OUT, _OUT_FACTOR = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_MIX, _MIX_OTHER = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)

Words = NDArray[np.uint32]
State = NDArray[np.uint64]


def entropy(seed: int, name: str, keys: int) -> Words:
    """Return the words of a stream's seed and name, with room for some keys at the end."""
    words = [seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    words += [0] * (POOL - len(words))
    return np.array([*words, crc32(name.encode()), *[0] * keys], dtype=np.uint32)


@compiled
def _hashed(word: Any, constant: Any, factor: Any) -> tuple[Any, Any]:
    """Return a word's hash, and the constant of the next one."""
    following = np.uint32(constant * factor)
    hashed = np.uint32((word ^ constant) * following)
    return np.uint32(hashed ^ (hashed >> _SHIFT)), following


@compiled
def _mixed(word: Any, other: Any) -> Any:
    mixed = np.uint32(np.uint32(word * _MIX) - np.uint32(other * _MIX_OTHER))
    return np.uint32(mixed ^ (mixed >> _SHIFT))


@compiled
def start(words: Words, pool: Words, state: State) -> None:
    """Start the stream of some words, see `entropy`; `pool` (4,) is overwritten."""
    constant = _IN
    for i in range(POOL):
        pool[i], constant = _hashed(words[i], constant, _IN_FACTOR)
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                other, constant = _hashed(pool[source], constant, _IN_FACTOR)
                pool[target] = _mixed(pool[target], other)
    for source in range(POOL, len(words)):
        for target in range(POOL):
            other, constant = _hashed(words[source], constant, _IN_FACTOR)
            pool[target] = _mixed(pool[target], other)
    constant = _OUT
    for i in range(4):
        low, constant = _hashed(pool[2 * i % POOL], constant, _OUT_FACTOR)
        high, constant = _hashed(pool[(2 * i + 1) % POOL], constant, _OUT_FACTOR)
        state[i] = np.uint64(low) | (np.uint64(high) << _HALF)
    first_high, first_low = state[0], state[1]
    state[2] = (state[2] << _ONE) | (state[3] >> np.uint64(63))
    state[3] = (state[3] << _ONE) | _ONE
    state[0], state[1] = _ZERO, _ZERO
    _step(state)
    low = state[1] + first_low
    state[0] += first_high + (_ONE if low < first_low else _ZERO)
    state[1] = low
    _step(state)
    state[4], state[5] = _ZERO, _ZERO


@compiled
def _step(state: State) -> None:
    """Multiply the position of 128 bits, and add the increment."""
    high, low = state[0], state[1]
    a, b = low & _LOW, low >> _HALF
    c, d = _LOW_FACTOR & _LOW, _LOW_FACTOR >> _HALF
    middle = ((a * c) >> _HALF) + ((a * d) & _LOW) + ((b * c) & _LOW)
    carried = b * d + ((a * d) >> _HALF) + ((b * c) >> _HALF) + (middle >> _HALF)
    product = low * _LOW_FACTOR
    total = product + state[3]
    carry = _ONE if total < product else _ZERO
    state[0] = carried + high * _LOW_FACTOR + low * _HIGH_FACTOR + state[2] + carry
    state[1] = total


@compiled
def _next64(state: State) -> Any:
    _step(state)
    word, turn = state[0] ^ state[1], state[0] >> np.uint64(58)
    return (word >> turn) | (word << ((np.uint64(64) - turn) & np.uint64(63)))


@compiled
def _next32(state: State) -> Any:
    """Draw 32 bits: of each word of 64 the lower half first."""
    if state[4]:
        state[4] = _ZERO
        return state[5]
    word = _next64(state)
    state[4], state[5] = _ONE, word >> _HALF
    return word & _LOW


@compiled
def uniform(state: State) -> Any:
    """Draw a multiple of 2^-53 from [0, 1), as `numpy.random.Generator.random` does."""
    return float(_next64(state) >> np.uint64(11)) * 2.0**-53


@compiled
def shuffle(state: State, values: NDArray[np.integer[Any]]) -> None:
    """Shuffle in place, as `numpy.random.Generator.shuffle` does."""
    for i in range(len(values) - 1, 0, -1):
        mask = np.uint64(i)
        mask |= mask >> np.uint64(1)
        mask |= mask >> np.uint64(2)
        mask |= mask >> np.uint64(4)
        mask |= mask >> np.uint64(8)
        mask |= mask >> np.uint64(16)
        drawn = _next32(state) & mask
        while drawn > np.uint64(i):
            drawn = _next32(state) & mask
        j = np.int64(drawn)
        values[i], values[j] = values[j], values[i]
