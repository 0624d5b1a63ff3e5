"""Sums and products of vectors in a written order, in a form that compilers turn into vectors.

Indices are unsigned: a signed one might count from the end, which costs more than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fl.compiled.elementary import exp
from fedhpo_gym.fl.compiled.jit import compiled

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

LANES = 8
"""Parts of a sum over features: rows are padded to multiples of it."""
BLOCK = 32
"""Rows whose products are computed at once."""
ZERO: Any = np.int64(0)
ONE: Any = np.int64(1)
"""No literals: a function is compiled anew for each of those."""

_U = np.uint64


@compiled
def dot(a: Floats, i: int, b: Floats, j: int, length: int) -> Any:
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
def add_scaled(a: Floats, i: int, factor: Any, b: Floats, j: int, length: int) -> None:
    """Add factor x b[j:] to a[i:]."""
    p, q = _U(i), _U(j)
    for k in range(_U(length)):
        a[p + k] += factor * b[q + k]


@compiled
def copy(a: Floats, i: int, b: Floats, j: int, length: int) -> None:
    """Copy b[j:] to a[i:]; an assignment of slices takes seconds to compile."""
    p, q = _U(i), _U(j)
    for k in range(_U(length)):
        a[p + k] = b[q + k]


@compiled
def transposed(
    x: Floats, width: int, rows: Any, begin: int, end: int, out: Floats, at: int
) -> None:
    """Copy rows[begin:end] of x (n x width) to the columns of out[at:] (width x rows)."""
    count = _U(end - begin)
    for row in range(count):
        source, target = _U(rows[_U(begin) + row]) * _U(width), _U(at) + row
        for k in range(_U(width)):
            out[target + k * count] = x[source + k]


@compiled
def products(
    w: Floats, i: int, width: int, x: Floats, j: int, count: int, out: Floats, at: int
) -> None:
    """Set out[at:at + count] to the products of w[i:i + width] and the columns of x[j:].

    Every product is added up in the order of the rows of x (width x count).
    """
    n, target = _U(count), _U(at)
    for column in range(n):
        out[target + column] = np.float32(0.0)
    for k in range(_U(width)):
        own, source = w[_U(i) + k], _U(j) + k * n
        for column in range(n):
            out[target + column] += own * x[source + column]


@compiled
def residuals(
    z: Floats, at: int, stride: int, classes: int, label: int, rate: Any, squashed: bool
) -> None:
    """Turn the logits z[at], z[at + stride], ... into rate x d(cross-entropy)/d(products).

    Logits far below the largest are clamped; their exponentials vanish in the sum.

    Args:
        z: numbers.
        at: where the first logit is.
        stride: how far apart they are.
        classes: how many there are.
        label: of the row.
        rate: the factor.
        squashed: whether logits are the sigmoids of products, and z holds these.
    """
    top = np.float32(-np.inf)
    for c in range(classes):
        if squashed:
            z[at + c * stride] = sigmoid(z[at + c * stride])
        top = max(top, z[at + c * stride])
    total = 0.0
    for c in range(classes):
        total += _raised(z[at + c * stride] - top)
    for c in range(classes):
        own = z[at + c * stride]
        residual = np.float32(_raised(own - top) / total) * rate
        if c == label:
            residual -= rate
        if squashed:
            residual *= own * (np.float32(1.0) - own)
        z[at + c * stride] = residual


@compiled
def _raised(below: Any) -> Any:
    return exp(max(float(below), -60.0) if below == below else float(below))


@compiled
def sigmoid(x: float) -> Any:
    """Return 1 / (1 + e^-x)."""
    return np.float32(1.0 / (1.0 + exp(-min(max(float(x), -60.0), 60.0))))


@compiled
def add_product(
    out: Floats, at: int, a: Floats, i: int, rows: int, inner: int, step: int, stride: int,
    b: Floats, j: int, width: int,
) -> None:  # fmt: skip
    """Add the product of matrices a (rows x inner) and b (inner x width) to out (rows x width).

    Entries are added up one after the other; entry (r, k) of a is a[i + r x stride + k x step],
    while the rows of b and out lie side by side.
    """
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
            own = a[p]
            for k in range(n):
                out[o + k] += own * b[q + k]
            p, q = p + _U(step), q + n
