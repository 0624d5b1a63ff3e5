"""What an evaluation reveals: the differential privacy spent, as a finite vector.

Renyi divergence of the Poisson-subsampled Gaussian mechanism (Mironov, Talwar and Zhang, 2019)
at integer orders, and its conversion to (epsilon, delta) (Canonne, Kamath and Steinke, 2020).
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
        sample_rate: Probability that a record (here: a client) takes part in a round.
        delta: The delta at which epsilon is stated, in (0, 1).

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """
    divergences = [
        renyi_gaussian(order, noise_multiplier, rounds, sample_rate) for order in _SEARCH_ORDERS
    ]
    epsilon = epsilon_from_renyi(_SEARCH_ORDERS, divergences, delta)
    if epsilon > CAP:
        return NO_PRIVACY
    renyi = tuple(min(divergences[order - _SEARCH_ORDERS.start], CAP) for order in ORDERS)
    return PrivacyLedger(epsilon, delta, renyi)


def renyi_gaussian(order: int, noise_multiplier: float, rounds: int, sample_rate: float) -> float:
    """Return the Renyi divergence, in nats, of a composed Poisson-subsampled Gaussian.

    ``T / (a - 1) * log sum_k C(a, k) q^k (1 - q)^(a - k) exp((k^2 - k) / (2 z^2))`` for order
    a, T rounds, rate q and noise multiplier z (Mironov et al., 2019, Section 3.3); adjacent
    data sets differ by adding or removing one record.

    Args:
        order: Integer order, 2 or more.
        noise_multiplier: Standard deviation of the noise over the clipping norm; 0 adds none.
        rounds: Number of compositions.
        sample_rate: Probability that a record takes part in a round, in [0, 1].

    Returns:
        The divergence; infinite without noise.

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """
    if not isinstance(order, int) or order < 2:
        raise InvalidArgumentError(f"`order` must be an integer of at least 2, got {order!r}.")
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise InvalidArgumentError(
            f"`noise_multiplier` must be finite and non-negative, got {noise_multiplier!r}."
        )
    if rounds < 0:
        raise InvalidArgumentError(f"`rounds` must be non-negative, got {rounds!r}.")
    if not 0.0 <= sample_rate <= 1.0:
        raise InvalidArgumentError(f"`sample_rate` must be in [0, 1], got {sample_rate!r}.")
    if rounds == 0 or sample_rate == 0.0:
        return 0.0
    return rounds * _one_round(order, float(noise_multiplier), float(sample_rate))


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


@lru_cache(maxsize=2**14)
def _one_round(order: int, noise_multiplier: float, sample_rate: float) -> float:
    """Return the divergence of one round, for a positive sample rate."""
    variance = noise_multiplier**2
    if variance == 0.0:
        return math.inf
    if sample_rate == 1.0:
        return order / (2.0 * variance)
    log_q, log_rest = math.log(sample_rate), math.log1p(-sample_rate)
    terms = [
        _log_binomial(order, k)
        + k * log_q
        + (order - k) * log_rest
        + (k * k - k) / (2.0 * variance)
        for k in range(order + 1)
    ]
    # Rounding can leave a sum that is 1 in exact arithmetic a hair below it.
    return max(0.0, _log_sum_exp(terms) / (order - 1))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_sum_exp(terms: Sequence[float]) -> float:
    largest = max(terms)
    if math.isinf(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
