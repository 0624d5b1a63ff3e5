"""Plain float arithmetic with the same bits on every processor: exp and log, sums and products.

Only operations that IEEE 754 fixes, in a written order that compilers turn into vectors. Indices
are unsigned: a signed one might count from the end, which costs more than the arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedhpo_gym.core.arrays import Singles
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
    roots, root = np.ones(_PARTS), 2.0
    for bit in reversed(range(_PARTS.bit_length() - 1)):
        root = math.sqrt(root)
        roots[np.arange(_PARTS) >> bit & 1 == 1] *= root
    return roots


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
    """Replace numbers up to 0 by their `exp`, without a branch; NaN stays."""
    for i in range(np.uint64(count)):
        value = values[i]
        x = value if -60.0 <= value <= 0.0 else -60.0
        n = int(x * _STEP - 0.5)
        r = (x - n * _HIGH) - n * _LOW
        square = r * r
        upper = (0.5 + r * (1.0 / 6.0)) + square * (1.0 / 24.0 + r * (1.0 / 120.0))
        scale = _ROOTS[np.uint64(n & (_PARTS - 1))] * _POWERS[np.uint64((n >> 6) - _FIRST)]
        values[i] = scale + scale * (r + square * upper) if value == value else value


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
    result: float = n * _LN2_HIGH + (2.0 * s * total + n * _LN2_LOW)
    return result


def power(base: float, exponent: float) -> float:
    """Return base^exponent of a positive base, or 0^exponent."""
    if base == 0.0:
        return 1.0 if exponent == 0.0 else (0.0 if exponent > 0.0 else math.inf)
    return float(exp(exponent * log(base)))


LANES = 8
"""Parts of a sum over features: rows are padded to multiples of it."""
BLOCK = 32
"""Rows whose products are computed at once."""
ZERO: Any = np.int64(0)
ONE: Any = np.int64(1)
"""No literals: a function is compiled anew for each of those."""

_U = np.uint64


@compiled
def dot(a: Singles, i: int, b: Singles, j: int, length: int) -> Any:
    """Return the product of a[i:] and b[j:], in eight parts; `length` is a multiple of eight."""
    p, q = _U(i), _U(j)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
    for _ in range(length // LANES):
        s0 += a[p] * b[q]
        s1 += a[p + _U(1)] * b[q + _U(1)]
        s2 += a[p + _U(2)] * b[q + _U(2)]
        s3 += a[p + _U(3)] * b[q + _U(3)]
        s4 += a[p + _U(4)] * b[q + _U(4)]
        s5 += a[p + _U(5)] * b[q + _U(5)]
        s6 += a[p + _U(6)] * b[q + _U(6)]
        s7 += a[p + _U(7)] * b[q + _U(7)]
        p, q = p + _U(8), q + _U(8)
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@compiled
def add_scaled(a: Singles, i: int, factor: Any, b: Singles, j: int, length: int) -> None:
    """Add factor x b[j:] to a[i:]."""
    p, q = _U(i), _U(j)
    for k in range(_U(length)):
        a[p + k] += factor * b[q + k]


@compiled
def copy(a: Singles, i: int, b: Singles, j: int, length: int) -> None:
    """Copy b[j:] to a[i:]; an assignment of slices takes seconds to compile."""
    p, q = _U(i), _U(j)
    for k in range(_U(length)):
        a[p + k] = b[q + k]


@compiled
def transposed(
    x: Singles, width: int, rows: Any, begin: int, end: int, out: Singles, at: int
) -> None:
    """Copy rows[begin:end] of x (n x width) to the columns of out[at:] (width x rows)."""
    count, n = _U(end - begin), _U(width)
    fours = count // _U(4)  # four rows at once: their lines of memory are fetched together
    for four in range(fours):
        row, target = _U(begin + 4 * four), _U(at + 4 * four)
        p0, p1 = _U(rows[row]) * n, _U(rows[row + _U(1)]) * n
        p2, p3 = _U(rows[row + _U(2)]) * n, _U(rows[row + _U(3)]) * n
        for k in range(n):
            out[target], out[target + _U(1)] = x[p0 + k], x[p1 + k]
            out[target + _U(2)], out[target + _U(3)] = x[p2 + k], x[p3 + k]
            target += count
    for rest in range(fours * _U(4), count):
        source, target = _U(rows[_U(begin) + rest]) * n, _U(at) + rest
        for k in range(n):
            out[target + k * count] = x[source + k]


@compiled
def residuals(
    z: Singles,
    at: int,
    stride: int,
    classes: int,
    label: int,
    rate: Any,
    squashed: bool,
    raised: Any,
) -> None:
    """Turn logits z[at], z[at + stride], ... into rate x d(cross-entropy)/d(products).

    `raised` (classes,) is memory.
    """
    top = np.float32(-np.inf)
    for c in range(classes):
        if squashed:
            z[at + c * stride] = sigmoid(z[at + c * stride])
        top = max(top, z[at + c * stride])
    for c in range(classes):
        raised[c] = float(z[at + c * stride] - top)
    exp_of_negatives(raised, classes)
    total = 0.0
    for c in range(classes):
        total += raised[c]
    for c in range(classes):
        share = z[at + c * stride]
        residual = np.float32(raised[c] / total) * rate
        if c == label:
            residual -= rate
        if squashed:
            residual *= share * (np.float32(1.0) - share)
        z[at + c * stride] = residual


@compiled
def sigmoid(x: float) -> Any:
    """Return 1 / (1 + e^-x)."""
    return np.float32(1.0 / (1.0 + exp(-min(max(float(x), -60.0), 60.0))))


@compiled
def add_product(
    out: Singles, at: int, a: Singles, i: int, rows: int, inner: int, step: int, stride: int,
    b: Singles, j: int, width: int,
) -> None:  # fmt: skip
    """Add the product of matrices a (rows x inner) and b (inner x width) to out (rows x width)."""
    n, fours = _U(width), inner // 4
    for r in range(rows):
        o, p, q = _U(at + r * width), _U(i + r * stride), _U(j)
        for _ in range(fours):
            a0, a1 = a[p], a[p + _U(step)]
            a2, a3 = a[p + _U(2 * step)], a[p + _U(3 * step)]
            q1, q2, q3 = q + n, q + n + n, q + n + n + n
            for k in range(n):
                total = out[o + k] + a0 * b[q + k]
                total += a1 * b[q1 + k]
                total += a2 * b[q2 + k]
                out[o + k] = total + a3 * b[q3 + k]
            p, q = p + _U(4 * step), q + _U(4) * n
        for _ in range(inner - 4 * fours):
            factor = a[p]
            for k in range(n):
                out[o + k] += factor * b[q + k]
            p, q = p + _U(step), q + n
