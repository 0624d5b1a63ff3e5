"""Normal numbers with the same bits on every processor.

numpy draws them by a ziggurat whose wedges and tail take the logarithm and exponential of the
system's library, which may round otherwise elsewhere. These are quantiles of the uniform numbers of
a stream: rational functions, and in the tails a logarithm of our own and a square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.compiled import draws
from fedhpo_gym.fl.compiled.elementary import log
from fedhpo_gym.fl.compiled.jit import compiled, kernel

_SMALLEST = 2.0**-54
"""Stands for a uniform number of 0, which has no quantile: half of the smallest other one."""


def standard_normal(
    seed: int, purpose: str, keys: Sequence[tuple[int, ...]], size: int
) -> NDArray[np.float32]:
    """Draw (len(keys), size) standard normal numbers.

    Args:
        seed: of the stream.
        purpose: name of the stream.
        keys: integers that tell streams of one name apart, as many for each row.
        size: numbers of a row.
    """
    names = np.array(keys, dtype=np.uint32).reshape(len(keys), -1)
    out = np.empty((len(keys), size), dtype=np.float32)
    _fill(draws.entropy(seed, purpose, names.shape[1]), names, out)
    return out


def normal_of(
    shape: tuple[int, ...], seed: int, purpose: str, names: Sequence[tuple[int, ...]]
) -> NDArray[np.float32]:
    """Draw standard normal numbers in a shape (own, items, ...), by the names of the items."""
    own, _, *inner = shape
    places = {keys: place for place, keys in enumerate(dict.fromkeys(names))}
    drawn = standard_normal(seed, purpose, [*places], math.prod((own, *inner)))
    found = drawn.reshape(len(places), own, *inner)[[places[keys] for keys in names]]
    return np.moveaxis(found, 0, 1)


@kernel
def _fill(words: draws.Words, names: draws.Words, out: NDArray[np.float32]) -> None:
    pool = np.empty(draws.POOL, dtype=np.uint32)
    state = np.empty(draws.STATE, dtype=np.uint64)
    words = words.copy()
    own = len(words) - names.shape[1]
    for row in range(len(names)):
        for k in range(names.shape[1]):
            words[own + k] = names[row, k]
        draws.start(words, pool, state)
        for column in range(out.shape[1]):
            out[row, column] = np.float32(quantile(draws.uniform(state)))


@compiled
def quantile(p: float) -> Any:
    """Return the standard normal quantile of a multiple of 2^-53 in [0, 1).

    Wichura's PPND16 (1988, Algorithm AS 241, Applied Statistics 37), right to about 1e-16.
    """
    q = p - 0.5
    if -0.425 <= q <= 0.425:
        r = 0.180625 - q * q
        return q * _middle(r)
    tail = p if q < 0.0 else 1.0 - p
    r = math.sqrt(-log(tail if tail > 0.0 else _SMALLEST))
    found = _shoulder(r - 1.6) if r <= 5.0 else _tail(r - 5.0)
    return -found if q < 0.0 else found


@compiled
def _middle(r: float) -> Any:
    above = 2.5090809287301226727e3
    for own in (
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ):
        above = above * r + own
    below = 5.2264952788528545610e3
    for own in (
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ):
        below = below * r + own
    return above / below


@compiled
def _shoulder(r: float) -> Any:
    above = 7.74545014278341407640e-4
    for own in (
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ):
        above = above * r + own
    below = 1.05075007164441684324e-9
    for own in (
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ):
        below = below * r + own
    return above / below


@compiled
def _tail(r: float) -> Any:
    above = 2.01033439929228813265e-7
    for own in (
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ):
        above = above * r + own
    below = 2.04426310338993978564e-15
    for own in (
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ):
        below = below * r + own
    return above / below
