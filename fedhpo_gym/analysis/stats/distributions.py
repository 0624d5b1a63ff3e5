"""Tail probabilities of the distributions that the tests need."""

from __future__ import annotations

from functools import cache
from math import comb, erfc, exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

Numbers = NDArray[np.float64]

_NODES = 200
_REACH = 9.0
"""Standard deviations beyond which a normal density adds less than 1e-17."""


def normal_tail(z: float) -> float:
    """Return P(Z > z) of the standard normal distribution."""
    return 0.5 * erfc(z / sqrt(2.0))


def chi2_tail(x: float, freedom: int) -> float:
    """Return P(X > x) of the chi-squared distribution with a whole number of degrees of freedom.

    With h = x / 2 and integer a = freedom / 2 it is exp(-h) sum_{i<a} h^i / i!; with half-integer
    a, erfc(sqrt h) + exp(-h) sum_{i<a-1/2} h^(i+1/2) / Gamma(i+3/2) (Abramowitz and Stegun, 1964,
    26.4.4 and 26.4.5).

    Raises:
        InvalidArgumentError: there is not at least one degree of freedom.
    """
    if freedom < 1:
        raise InvalidArgumentError(f"`freedom` must be at least 1, got {freedom}")
    if x <= 0:
        return 1.0
    half, odd = x / 2.0, freedom % 2
    start = erfc(sqrt(half)) if odd else 0.0
    powers = np.arange(freedom // 2) + odd / 2.0
    return min(1.0, start + sum(exp(p * log(half) - half - lgamma(p + 1.0)) for p in powers))


def binomial_tail(wins: int, trials: int) -> float:
    """Return P(X >= wins) of fair coins thrown some times."""
    ways = sum(comb(trials, k) for k in range(wins, trials + 1))
    return float(ways / 2**trials)


def range_tail(q: float, groups: int) -> float:
    """Return P(Q > q) of the studentised range of some groups with infinite degrees of freedom.

    P(Q <= q) = k integral phi(z) [Phi(z) - Phi(z - q)]^(k-1) dz: one of k standard normal values is
    the largest, at z, and the others lie within q below it (Tukey, 1953).

    Raises:
        InvalidArgumentError: there are fewer than two groups.
    """
    if groups < 2:
        raise InvalidArgumentError(f"`groups` must be at least 2, got {groups}")
    if q <= 0:
        return 1.0
    z, weights, tails = _quadrature()
    below = np.array([normal_tail(value - q) for value in z.tolist()]) - tails
    inside = groups * np.sum(weights * below ** (groups - 1))
    return float(np.clip(1.0 - inside, 0.0, 1.0))


@cache
def _quadrature() -> tuple[Numbers, Numbers, Numbers]:
    """Return points z, weights for integrals over phi(z) dz, and P(Z > z)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z = _REACH * nodes
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z, _REACH * weights * density, np.array([normal_tail(value) for value in z.tolist()])


@cache
def range_quantile(alpha: float, groups: int) -> float:
    """Return the q for which P(Q > q) = alpha; see `range_tail`.

    Raises:
        InvalidArgumentError: `alpha` is not in (0, 1), or there are fewer than two groups.
    """
    if not 0 < alpha < 1:
        raise InvalidArgumentError(f"`alpha` must lie in (0, 1), got {alpha}")
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if range_tail(middle, groups) > alpha else (low, middle)
    return (low + high) / 2
