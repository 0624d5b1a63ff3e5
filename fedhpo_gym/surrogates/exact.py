"""Products of matrices whose order of summation changes no bit.

A library multiplies matrices in another order for other shapes, threads and processors, and each
order rounds differently. Where all factors are multiples of powers of two with few enough bits, a
float64 holds every partial sum exactly. Then a row gets the same bits alone, in any batch, and on
any machine. Whoever multiplies here says why 53 bits suffice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Exact = NDArray[np.float64]


def on_grid(
    values: NDArray[np.generic], bits: int, limit: float = math.inf, lowest: float = -math.inf
) -> Exact:
    """Return the nearest multiples of 2^-bits, within [-limit, limit] and from `lowest` on.

    Args:
        values: what to round.
        bits: binary digits after the point.
        limit: largest absolute value.
        lowest: smallest value.
    """
    grid: Exact = np.multiply(values, 2.0**bits, dtype=np.float64)
    if limit < math.inf:
        low, high = max(-limit, lowest) * 2.0**bits, limit * 2.0**bits
        np.minimum(np.maximum(grid, low, out=grid), high, out=grid)
    np.rint(grid, out=grid)
    grid *= 2.0**-bits
    return grid
