"""What an evaluation reveals: the differential privacy spent, as a finite vector.

Renyi divergence, at integer orders, of a Gaussian mechanism on a subsample without replacement
(Wang, Balle and Kasiviswanathan, 2019), and its conversion to (epsilon, delta) (Canonne, Kamath
and Steinke, 2020). Adjacent data sets differ by replacing one record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

PRIVACY_NAMES: Final = ("epsilon", "delta", "renyi_2", "renyi_8", "renyi_32")
ORDERS: Final = (2, 8, 32)
"""Renyi orders that a ledger reports."""
CAP: Final = 1e4
"""Largest epsilon or Renyi divergence a ledger holds; it stands for "no guarantee"."""

_SEARCH_ORDERS: Final = range(2, 256)
_QUADRATURE_STEP: Final = 0.25
_LEAST_NOISE: Final = 0.5
"""With less noise, moments of p/r are smaller than those of p/r - 1, which then nobody computes."""


@dataclass(frozen=True)
class PrivacyLedger:
    """The privacy spent so far; every field is finite, so it fits in an observation.

    Attributes:
        epsilon: Epsilon of (epsilon, delta) differential privacy, in [0, ``CAP``].
        delta: Its delta, in [0, 1].
        renyi: Renyi divergence in nats at each of ``ORDERS``, in [0, ``CAP``].

    Raises:
        InvalidArgumentError: A field is out of its range.
    """

    epsilon: float
    delta: float
    renyi: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the ranges."""
        if len(self.renyi) != len(ORDERS):
            raise InvalidArgumentError(
                f"`renyi` must have one entry per order {ORDERS}, got {self.renyi!r}."
            )
        if not 0.0 <= self.delta <= 1.0:
            raise InvalidArgumentError(f"`delta` must be in [0, 1], got {self.delta!r}.")
        for name, values in (("epsilon", (self.epsilon,)), ("renyi", self.renyi)):
            if not all(0.0 <= value <= CAP for value in values):
                raise InvalidArgumentError(f"`{name}` must be in [0, {CAP:g}], got {values!r}.")

    def vector(self) -> NDArray[np.float64]:
        """Return the (5,) fields in the order of ``PRIVACY_NAMES``."""
        return np.array([self.epsilon, self.delta, *self.renyi], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class PrivacyLedgers:
    """The privacy spent by B evaluations side by side.

    Attributes:
        values: (B, 5) fields in the order of ``PRIVACY_NAMES``.
    """

    values: NDArray[np.float64]

    def vector(self) -> NDArray[np.float64]:
        """Return the (B, 5) fields: ``PrivacyLedger.vector`` with a leading axis."""
        return self.values


NO_PRIVACY: Final = PrivacyLedger(epsilon=CAP, delta=1.0, renyi=(CAP,) * len(ORDERS))
"""No guarantee at all: everything at its cap, never infinite."""


def gaussian_ledger(
    noise_multiplier: float, rounds: int, sample_rate: float, delta: float
) -> PrivacyLedger:
    """Return what ``rounds`` rounds of a subsampled Gaussian mechanism spend, capped at ``CAP``.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        rounds: Number of compositions.
        sample_rate: Share of the records (here: clients) that is drawn in a round, in [0, 1].
        delta: The delta at which epsilon is stated, in (0, 1).

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """
    divergences = _composed(noise_multiplier, rounds, sample_rate, _SEARCH_ORDERS.stop - 1)
    epsilon = epsilon_from_renyi(_SEARCH_ORDERS, divergences, delta)
    if epsilon > CAP:
        return NO_PRIVACY
    renyi = tuple(min(divergences[order - _SEARCH_ORDERS.start], CAP) for order in ORDERS)
    return PrivacyLedger(epsilon, delta, renyi)


def renyi_gaussian(order: int, noise_multiplier: float, rounds: int, sample_rate: float) -> float:
    """Return a bound of the Renyi divergence, in nats, of a composed subsampled Gaussian.

    In each of T rounds a share q of the records is drawn without replacement; adjacent data sets
    differ by replacing one record. With p = N(1, z^2) and r = N(0, z^2) for noise multiplier z, the
    bound at order a is the smaller of the Gaussian's own ``T a / (2 z^2)``, which sampling cannot
    raise, and ``T / (a - 1) log(1 + sum_j C(a, j) q^j m_j)``, j = 2 .. a, with

    ``m_j = min(4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 E_r[(p/r)^j])``,
    ``B(l) = E_r[(p/r - 1)^l]``, ``E_r[(p/r)^j] = exp(j (j - 1) / (2 z^2))``

    (Wang, Balle and Kasiviswanathan, 2019: Theorem 9 with the sharper moments of Theorem 27 of
    their long version, arXiv:1808.00087).

    Args:
        order: Integer order, 2 or more.
        noise_multiplier: Standard deviation of the noise over the largest change that replacing
            a record makes; 0 adds none.
        rounds: Number of compositions.
        sample_rate: Share of the records that is drawn in a round, in [0, 1].

    Returns:
        The divergence; infinite without noise.

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """
    if not isinstance(order, int) or order < 2:
        raise InvalidArgumentError(f"`order` must be an integer of at least 2, got {order!r}.")
    highest = max(order, _SEARCH_ORDERS.stop - 1)
    return _composed(noise_multiplier, rounds, sample_rate, highest)[order - 2]


def _composed(
    noise_multiplier: float, rounds: int, sample_rate: float, highest: int
) -> list[float]:
    """Return `renyi_gaussian` at the orders 2 .. highest."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise InvalidArgumentError(
            f"`noise_multiplier` must be finite and non-negative, got {noise_multiplier!r}."
        )
    if rounds < 0:
        raise InvalidArgumentError(f"`rounds` must be non-negative, got {rounds!r}.")
    if not 0.0 <= sample_rate <= 1.0:
        raise InvalidArgumentError(f"`sample_rate` must be in [0, 1], got {sample_rate!r}.")
    if rounds == 0 or sample_rate == 0.0:
        return [0.0] * (highest - 1)
    one_round = _one_round(float(noise_multiplier), float(sample_rate), highest)
    return [rounds * divergence for divergence in one_round.tolist()]


def epsilon_from_renyi(orders: Sequence[int], renyi: Sequence[float], delta: float) -> float:
    """Return the smallest epsilon that the Renyi divergences prove at ``delta``.

    ``min_a r_a + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)`` (Canonne, Kamath and Steinke,
    2020, Proposition 12), and 0 where a divergence already bounds the total variation distance by
    delta (``KL <= -log(1 - delta^2)``).

    Args:
        orders: The orders a, each above 1.
        renyi: The divergence r_a in nats at each order; infinite ones prove nothing.
        delta: In (0, 1).

    Returns:
        A non-negative epsilon; infinite when nothing is proved.

    Raises:
        InvalidArgumentError: Lengths differ, or delta or an order is out of its range.
    """
    if not 0.0 < delta < 1.0:
        raise InvalidArgumentError(f"`delta` must be in (0, 1), got {delta!r}.")
    if len(orders) != len(renyi) or not orders or min(orders) <= 1:
        raise InvalidArgumentError(
            f"`orders` must match `renyi` one to one and exceed 1, got {orders!r}."
        )
    bounds = [_epsilon_at(a, r, delta) for a, r in zip(orders, renyi, strict=True)]
    return max(0.0, min(bounds))


def _epsilon_at(order: int, renyi: float, delta: float) -> float:
    if delta**2 + math.expm1(-renyi) >= 0:
        return 0.0
    return renyi + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@lru_cache(maxsize=1024)
def _one_round(noise_multiplier: float, sample_rate: float, highest: int) -> NDArray[np.float64]:
    """Return the divergences of one round at the orders 2 .. highest, for a positive rate."""
    variance = noise_multiplier**2
    orders = np.arange(2.0, highest + 1)
    if variance == 0.0:
        return np.full(orders.shape, math.inf)
    with np.errstate(over="ignore"):
        plain = orders / (2.0 * variance)
    if sample_rate == 1.0:
        return plain
    # Rows are orders a, columns the summands j <= a.
    summands = orders * math.log(sample_rate) + _log_moments(noise_multiplier, highest)
    terms = _log_binomials(highest) + summands
    mask = np.tri(len(orders), dtype=np.bool_)
    total = np.logaddexp.reduce(terms, axis=1, where=mask, initial=-math.inf)
    return np.asarray(np.minimum(np.logaddexp(0.0, total) / (orders - 1.0), plain))


@lru_cache(maxsize=64)
def _log_moments(noise_multiplier: float, highest: int) -> NDArray[np.float64]:
    """Return log m_j of `renyi_gaussian` for j = 2 .. highest."""
    powers = np.arange(2.0, highest + 1)
    with np.errstate(over="ignore"):
        moments = math.log(2.0) + powers * (powers - 1.0) / (2.0 * noise_multiplier**2)
    if noise_multiplier < _LEAST_NOISE:
        return moments
    even = _log_even_differences(1.0 / noise_multiplier, highest // 2 + 1)
    whole = np.arange(2, highest + 1)
    central = math.log(4.0) + 0.5 * (even[whole // 2 - 1] + even[(whole + 1) // 2 - 1])
    return np.minimum(moments, central)


def _log_even_differences(shift: float, count: int) -> NDArray[np.float64]:
    """Return log B(l) of `renyi_gaussian` for l = 2, 4 .. 2 count and shift = 1 / z.

    B(l) is an alternating sum of exponentials, of which rounding leaves nothing where noise is
    large. As an integral over y = x / z it has no negative term, and the trapezoid rule is exact to
    all digits: the integrand is a Gaussian times an entire function.
    """
    powers = 2.0 * np.arange(1, count + 1)
    reach = math.sqrt(powers[-1]) + 12.0  # the integrand peaks near +-sqrt(l) or l shift
    y = np.arange(-reach, powers[-1] * shift + reach, _QUADRATURE_STEP)
    loss = shift * y - shift**2 / 2.0  # log(p/r)
    with np.errstate(divide="ignore"):
        log_ratio = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))
    terms = powers[:, None] * log_ratio - y**2 / 2.0
    largest = terms.max(axis=1)
    sums = np.exp(terms - largest[:, None]).sum(axis=1)
    scale = math.log(_QUADRATURE_STEP / math.sqrt(2.0 * math.pi))
    return np.asarray(largest + np.log(sums) + scale)


@lru_cache(maxsize=4)
def _log_binomials(highest: int) -> NDArray[np.float64]:
    """Return log C(a, j) for a, j = 2 .. highest; what stands above the diagonal means nothing."""
    factorials = np.array([math.lgamma(n + 1) for n in range(highest + 1)])
    a, j = np.ogrid[2 : highest + 1, 2 : highest + 1]
    return np.asarray(factorials[a] - factorials[j] - factorials[np.maximum(a - j, 0)])
