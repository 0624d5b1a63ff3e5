"""Exponential and logarithm in plain float arithmetic: the same bits on every processor.

A library's own functions round differently from one system to the next. These take additions,
multiplications, divisions and conversions alone, all of which IEEE 754 fixes, and are right up to
some units in the last place of a double.
"""

from __future__ import annotations

import math

import numpy as np

from fedhpo_gym.fl.compiled.jit import compiled

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""Of ln 2: the first has 32 trailing zero bits, so multiples of it are exact."""
_PER_LN2 = 1.44269504088896338700e00
_FIRST = -1074
_POWERS = np.array([math.ldexp(1.0, n) for n in range(_FIRST, 1024)])
_TERMS = tuple(1.0 / math.factorial(n) for n in range(14))
_ROOT_HALF = math.sqrt(0.5)


@compiled
def exp(x: float) -> float:
    """Return e^x for -700 <= x <= 700; NaN stays NaN."""
    if not (-700.0 <= x <= 700.0):
        return math.nan if x != x else (0.0 if x < 0.0 else math.inf)
    n = int(x * _PER_LN2 + (0.5 if x >= 0.0 else -0.5))
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = _TERMS[13]
    total = total * r + _TERMS[12]
    total = total * r + _TERMS[11]
    total = total * r + _TERMS[10]
    total = total * r + _TERMS[9]
    total = total * r + _TERMS[8]
    total = total * r + _TERMS[7]
    total = total * r + _TERMS[6]
    total = total * r + _TERMS[5]
    total = total * r + _TERMS[4]
    total = total * r + _TERMS[3]
    total = total * r + 0.5
    total = total * r + 1.0
    total = total * r + 1.0
    return total * _POWERS[n - _FIRST]


@compiled
def log(x: float) -> float:
    """Return the natural logarithm of a positive number; NaN stays NaN."""
    if not (0.0 < x < math.inf):
        return math.nan if not x >= 0.0 else (-math.inf if x == 0.0 else math.inf)
    n = 0
    while x >= 2.0 * _ROOT_HALF:
        x *= 0.5
        n += 1
    while x < _ROOT_HALF:
        x *= 2.0
        n -= 1
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    total = 1.0 / 25.0
    for k in range(23, 0, -2):
        total = total * square + 1.0 / k
    return n * _LN2_HIGH + (2.0 * s * total + n * _LN2_LOW)


def power(base: float, exponent: float) -> float:
    """Return base^exponent of a positive base, or 0^exponent."""
    if base == 0.0:
        return 1.0 if exponent == 0.0 else (0.0 if exponent > 0.0 else math.inf)
    return exp(exponent * log(base))
