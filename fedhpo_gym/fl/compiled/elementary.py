"""Exponential and logarithm in plain float arithmetic: the same bits on every processor.

A library's own functions round differently from one system to the next. These take additions,
multiplications, divisions and conversions alone, all of which IEEE 754 fixes, and are right up to
some units in the last place of a double.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedhpo_gym.fl.compiled.jit import compiled

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""Of ln 2: the first has 32 trailing zero bits, so small multiples of it are exact."""
_PARTS = 64
_STEP = 1.44269504088896338700e00 * _PARTS
_HIGH, _LOW = _LN2_HIGH / _PARTS, _LN2_LOW / _PARTS
_FIRST = -1074
_POWERS = np.array([math.ldexp(1.0, n) for n in range(_FIRST, 1024)])
_ROOT_HALF = math.sqrt(0.5)
_ODD = np.array([1.0 / k for k in range(1, 26, 2)])


def _roots() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return 2^(i / 64), made of square roots, which IEEE 754 fixes."""
    found, root = np.ones(_PARTS), 2.0
    for bit in reversed(range(_PARTS.bit_length() - 1)):
        root = math.sqrt(root)
        found[np.arange(_PARTS) >> bit & 1 == 1] *= root
    return found


_ROOTS = _roots()


@compiled
def exp(x: float) -> Any:
    """Return e^x for -700 <= x <= 700; NaN stays NaN."""
    if not (-700.0 <= x <= 700.0):
        return math.nan if x != x else (0.0 if x < 0.0 else math.inf)
    n = int(x * _STEP + (0.5 if x >= 0.0 else -0.5))
    r = (x - n * _HIGH) - n * _LOW
    square = r * r
    upper = (0.5 + r * (1.0 / 6.0)) + square * (1.0 / 24.0 + r * (1.0 / 120.0))
    scale = _ROOTS[np.uint64(n & (_PARTS - 1))] * _POWERS[np.uint64((n >> 6) - _FIRST)]
    return scale + scale * (r + square * upper)


@compiled
def exp_of_negatives(values: Any, count: int) -> None:
    """Replace numbers up to 0 by their `exp`; below -60 by that of -60, NaN by NaN.

    Without a branch, so that compilers make vectors of it; the bits are those of `exp`.
    """
    for i in range(np.uint64(count)):
        given = values[i]
        x = given if -60.0 <= given <= 0.0 else -60.0
        n = int(x * _STEP - 0.5)
        r = (x - n * _HIGH) - n * _LOW
        square = r * r
        upper = (0.5 + r * (1.0 / 6.0)) + square * (1.0 / 24.0 + r * (1.0 / 120.0))
        scale = _ROOTS[np.uint64(n & (_PARTS - 1))] * _POWERS[np.uint64((n >> 6) - _FIRST)]
        values[i] = scale + scale * (r + square * upper) if given == given else given


@compiled
def log(x: float) -> float:
    """Return the natural logarithm of a positive number; NaN stays NaN."""
    if not (0.0 < x < math.inf):
        return math.nan if not x >= 0.0 else (-math.inf if x == 0.0 else math.inf)
    n = 0
    while x >= 4294967296.0:
        x *= 1.0 / 4294967296.0
        n += 32
    while x >= 2.0 * _ROOT_HALF:
        x *= 0.5
        n += 1
    while x < _ROOT_HALF:
        x *= 2.0
        n -= 1
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    total = _ODD[12]
    for k in range(11, -1, -1):
        total = total * square + _ODD[k]
    found: float = n * _LN2_HIGH + (2.0 * s * total + n * _LN2_LOW)
    return found


def power(base: float, exponent: float) -> float:
    """Return base^exponent of a positive base, or 0^exponent."""
    if base == 0.0:
        return 1.0 if exponent == 0.0 else (0.0 if exponent > 0.0 else math.inf)
    return float(exp(exponent * log(base)))
