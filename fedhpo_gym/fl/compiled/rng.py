"""The streams of `fedhpo_gym.core.seeding`, bit for bit, in compiled code.

numpy promises that its seeding (`SeedSequence`) and its generator (`PCG64`) stay as they are. The
hash is that of `seed_seq_fe` (M. E. O'Neill, "Developing a seed_seq Alternative", 2015), the
generator PCG XSL RR 128/64 (O'Neill, 2014). A shuffle draws by rejection from 32-bit halves.

Normal numbers have the same bits on every processor, too. numpy draws them by a ziggurat whose
wedges and tail take the logarithm and exponential of the system's library, which may round
otherwise elsewhere. These are quantiles of the uniform numbers of a stream: rational functions, and
in the tails a logarithm of our own and a square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.compiled.arithmetic import log
from fedhpo_gym.fl.compiled.jit import compiled, kernel

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
    """Start the stream of some words of `entropy`; `pool` (4,) is overwritten."""
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
        draw = _next32(state) & mask
        while draw > np.uint64(i):
            draw = _next32(state) & mask
        j = np.int64(draw)
        values[i], values[j] = values[j], values[i]


_SMALLEST = 2.0**-54
"""Stands for a uniform number of 0, which has no quantile: half of the smallest other one."""


def standard_normal(
    seed: int, purpose: str, keys: Sequence[tuple[int, ...]], size: int
) -> NDArray[np.float32]:
    """Draw (len(keys), size) standard normal numbers."""
    names = np.array(keys, dtype=np.uint32).reshape(len(keys), -1)
    out = np.empty((len(keys), size), dtype=np.float32)
    _fill(entropy(seed, purpose, names.shape[1]), names, out)
    return out


def normal_of(
    shape: tuple[int, ...], seed: int, purpose: str, names: Sequence[tuple[int, ...]]
) -> NDArray[np.float32]:
    """Draw standard normal numbers in a shape (own, items, ...), by the names of the items."""
    own, _, *inner = shape
    index_of = {keys: index for index, keys in enumerate(dict.fromkeys(names))}
    normals = standard_normal(seed, purpose, [*index_of], math.prod((own, *inner)))
    ordered = normals.reshape(len(index_of), own, *inner)[[index_of[keys] for keys in names]]
    return np.moveaxis(ordered, 0, 1)


@kernel
def _fill(words: Words, names: Words, out: NDArray[np.float32]) -> None:
    pool = np.empty(POOL, dtype=np.uint32)
    state = np.empty(STATE, dtype=np.uint64)
    words = words.copy()
    own = len(words) - names.shape[1]
    for row in range(len(names)):
        for k in range(names.shape[1]):
            words[own + k] = names[row, k]
        start(words, pool, state)
        for column in range(out.shape[1]):
            out[row, column] = np.float32(quantile(uniform(state)))


# Coefficients of PPND16's rational functions: of the middle, the shoulders and the tails.
_ABOVE = np.array([
    [2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
     4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
     1.3314166789178437745e2, 3.3871328727963666080e0],
    [7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
     1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
     4.63033784615654529590e0, 1.42343711074968357734e0],
    [2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
     5.46378491116411436990e0, 6.65790464350110377720e0],
])  # fmt: skip
_BELOW = np.array([
    [5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
     2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
     4.2313330701600911252e1, 1.0],
    [1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
     1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
     2.05319162663775882187e0, 1.0],
    [2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0],
])  # fmt: skip


@compiled
def _ratio(part: int, r: float) -> Any:
    above, below = 0.0, 0.0
    for k in range(8):
        above = above * r + _ABOVE[part, k]
        below = below * r + _BELOW[part, k]
    return above / below


@compiled
def quantile(p: float) -> Any:
    """Return the normal quantile of a number in [0, 1): PPND16 (Wichura, 1988, AS 241)."""
    q = p - 0.5
    if -0.425 <= q <= 0.425:
        r = 0.180625 - q * q
        return q * _ratio(0, r)
    tail = p if q < 0.0 else 1.0 - p
    r = math.sqrt(-log(tail if tail > 0.0 else _SMALLEST))
    found = _ratio(1, r - 1.6) if r <= 5.0 else _ratio(2, r - 5.0)
    return -found if q < 0.0 else found
