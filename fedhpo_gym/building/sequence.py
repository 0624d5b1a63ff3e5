"""Points that fill a cube evenly, however many are taken from the front."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.seeding import stream

_BITS = 50
"""Precision of a coordinate; a double holds it exactly enough for every grid."""


def halton(count: int, dimensions: int) -> NDArray[np.float64]:
    """Return (count, dimensions) points in [0, 1) of a scrambled Halton sequence.

    Coordinate j of point i is i written in the j-th prime base, mirrored at the point (Halton,
    1960), with an independent random permutation of the values of every digit (Braaten and Weller,
    1979; here all digits, trailing zeros included). More points begin with the same ones.
    """
    return np.column_stack(
        [_scrambled_radical_inverse(count, j, p) for j, p in enumerate(_primes(dimensions))]
    )


def balanced(count: int, size: int) -> NDArray[np.int64]:
    """Return (count,) numbers below `size`; every run of `size` from the front holds each once.

    The order inside a run is random: a fixed one could run in step with a coordinate of `halton`.
    """
    runs = [
        stream(0, "sample_order", size, run).permutation(size) for run in range(-(-count // size))
    ]
    return np.concatenate([np.empty(0, np.int64), *runs])[:count]


def _scrambled_radical_inverse(count: int, axis: int, base: int) -> NDArray[np.float64]:
    rest = np.arange(count)
    coordinate = np.zeros(count)
    for digit in range(math.ceil(_BITS / math.log2(base))):
        permutation = stream(0, "sample_design", axis, digit).permutation(base)
        coordinate += permutation[rest % base] * float(base) ** -(digit + 1)
        rest //= base
    return np.minimum(coordinate, np.nextafter(1.0, 0.0))


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found
