"""What an evaluation reveals: the differential privacy spent, as a finite vector.

Renyi divergence, at integer orders, of Gaussian mechanisms that a random share of the clients takes
part in, and its conversion to (epsilon, delta) (Canonne, Kamath and Steinke, 2020). Adjacent data
sets differ by one sample of one client that is replaced, in `poisson_curve` by a client.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, check_fields, short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known

PRIVACY_NAMES: Final = ("epsilon", "delta", "renyi_2", "renyi_8", "renyi_32")
ORDERS: Final = (2, 8, 32)
"""Renyi orders that a ledger reports."""
CAP: Final = 1e4
"""Largest epsilon or Renyi divergence a ledger holds; it stands for "no guarantee"."""

SEARCH_ORDERS: Final = range(2, 256)
"""Renyi orders among which the accountant looks for the smallest epsilon."""

Rounds = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Divergence = Annotated[float, Range(0)]
Capped = Annotated[float, Range(0, CAP)]
Delta = Annotated[float, Range(0, 1, "()")]
Noise = Annotated[float, Range(0, ends="[)")]


class Spent:
    """What evaluations spend; a ledger alone says nothing of costs."""

    @property
    def privacy(self) -> Any:
        """The privacy spent: of a ledger, itself."""
        return self

    @property
    def costs(self) -> Mapping[str, float | Floats]:
        """What else is spent, where anybody knows."""
        raise InvalidArgumentError(
            "`spent` must be a `Spending`, which knows costs, to tell an objective of costs; got "
            "the privacy spent alone"
        )


@dataclass(frozen=True)
class PrivacyLedger(Spent):
    """The privacy spent so far; every field is finite, so it fits in an observation.

    Attributes:
        epsilon: Epsilon of (epsilon, delta) differential privacy, in [0, ``CAP``].
        delta: Its delta, in [0, 1].
        renyi: Renyi divergence in nats at each of ``ORDERS``, in [0, ``CAP``].
    """

    epsilon: Capped
    delta: Share
    renyi: tuple[Capped, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.renyi) != len(ORDERS):
            raise InvalidArgumentError(
                f"`renyi` must have one entry per order {ORDERS}, got {self.renyi!r}."
            )

    def vector(self) -> Floats:
        """Return the (5,) fields in the order of ``PRIVACY_NAMES``."""
        return np.array([self.epsilon, self.delta, *self.renyi], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class PrivacyLedgers(Spent):
    """The privacy spent by B evaluations: (B, 5) values in the order of ``PRIVACY_NAMES``."""

    values: Floats

    def vector(self) -> Floats:
        """Return the (B, 5) fields: ``PrivacyLedger.vector`` with a leading axis."""
        return self.values


NO_PRIVACY: Final = PrivacyLedger(epsilon=CAP, delta=1.0, renyi=(CAP,) * len(ORDERS))
"""No guarantee at all: everything at its cap, never infinite."""


@validate_call
def ledger_of(divergences: Sequence[float], delta: Delta) -> PrivacyLedger:
    """Return the ledger that Renyi divergences at `SEARCH_ORDERS` prove, capped at ``CAP``."""
    curve = np.array(divergences, dtype=np.float64)
    if len(curve) != len(SEARCH_ORDERS) or not (curve >= 0).all():  # NaN is not, either
        raise InvalidArgumentError(
            f"`divergences` must be {len(SEARCH_ORDERS)} numbers of at least 0, one per order of "
            f"`SEARCH_ORDERS`, got {short_repr(divergences)}."
        )
    epsilon = _smallest_epsilon(SEARCH_ORDERS, curve, delta)
    if epsilon > CAP:
        return NO_PRIVACY
    renyi = tuple(min(float(divergences[a - SEARCH_ORDERS.start]), CAP) for a in ORDERS)
    return PrivacyLedger(epsilon, delta, renyi)


@validate_call
def renyi_curve(noise_multiplier: Noise, rounds: Rounds, sample_rate: Share) -> Floats:
    """Return a bound, at `SEARCH_ORDERS`, of the divergence of a composed subsampled Gaussian.

    In each of T rounds a share q of the clients is drawn; adjacent data sets differ by one sample
    of one client that is replaced. With noise multiplier z, the standard deviation of the noise
    over the clipping norm, the bound at order a is, in nats, ``T / (a - 1) log(1 - q + q exp(a (a -
    1) / (2 z^2)))``; infinite without noise.

    A round without the client says the same of both data sets, a round with it is a Gaussian
    mechanism, and exp((a - 1) D_a) is jointly convex (van Erven and Harremoes, 2014, Section III).
    It is an equality where everybody sees who took part. Bounds that use the secrecy of the draw
    (Wang, Balle and Kasiviswanathan, 2019, Theorem 9) do not apply: they take for granted that one
    client in place of another changes no more than one sample does, but uploads arrive one by one.
    """
    if rounds == 0 or sample_rate == 0.0:
        return np.zeros(len(SEARCH_ORDERS))
    orders = np.array(SEARCH_ORDERS, dtype=np.float64)
    with np.errstate(over="ignore", divide="ignore"):
        plain = orders / (2.0 * np.float64(noise_multiplier) ** 2)
        if sample_rate == 1.0:
            return np.asarray(rounds * plain)
        grown = math.log(sample_rate) + (orders - 1.0) * plain
        sampled = np.logaddexp(math.log1p(-sample_rate), grown) / (orders - 1.0)
        # Rounding can leave a logarithm of 1 a hair below 0.
        return np.asarray(rounds * np.maximum(sampled, 0.0))


@validate_call
def poisson_curve(noise_multiplier: Noise, rounds: Rounds, sample_rate: Share) -> Floats:
    """Return the Renyi divergence at `SEARCH_ORDERS` of a Gaussian on clients that decide alone.

    In each of T rounds every client takes part with probability q, and nobody learns who did; what
    clients send is clipped, added up and noised. Adjacent data sets differ by one client that is
    there or is not. At order a and noise multiplier z, a round's divergence is ``1 / (a - 1) log
    sum_k binom(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 z^2))`` (Mironov, Talwar and Zhang,
    2019, Section 3.3).
    """
    return _poisson_curve(noise_multiplier, rounds, sample_rate)


def _poisson_curve(noise_multiplier: float, rounds: int, sample_rate: float) -> Floats:
    if rounds == 0 or sample_rate == 0.0:
        return np.zeros(len(_ORDERS))
    with np.errstate(divide="ignore", over="ignore"):
        if sample_rate == 1.0:
            return rounds * (_ORDERS / (2.0 * np.float64(noise_multiplier) ** 2))
        growth = 1.0 / (2.0 * np.float64(noise_multiplier) ** 2)
    if growth == np.inf:
        return np.full(len(_ORDERS), np.inf)
    log_terms = np.where(_LEFT >= 0, _log_weights(sample_rate) + _PAIRS * growth, -np.inf)
    each = np.logaddexp.reduce(log_terms, axis=1) / (_ORDERS - 1.0)
    # Rounding can leave a logarithm of 1 a hair below 0.
    return np.asarray(rounds * np.maximum(each, 0.0))


_ORDERS: Final = np.array(SEARCH_ORDERS, dtype=np.float64)
_K: Final = np.arange(SEARCH_ORDERS.stop, dtype=np.float64)
_PAIRS: Final = _K * (_K - 1.0)
_LEFT: Final = _ORDERS[:, None] - _K  # (orders, k)
_LOG_FACTORIAL: Final = np.array([math.lgamma(n + 1.0) for n in range(SEARCH_ORDERS.stop)])


@lru_cache(maxsize=16)
def _log_weights(sample_rate: float) -> Floats:
    """Return the (orders, k) logarithms of binomial weights; those of k > order mean nothing."""
    chosen = _LOG_FACTORIAL[SEARCH_ORDERS.start : SEARCH_ORDERS.stop, None] - _LOG_FACTORIAL
    chosen = chosen - _LOG_FACTORIAL[np.maximum(_LEFT, 0).astype(np.int64)]
    return np.asarray(chosen + _LEFT * math.log1p(-sample_rate) + _K * math.log(sample_rate))


@lru_cache(maxsize=4096)
@validate_call
def planned_noise(
    epsilon: Annotated[float, Range(0, ends="(]")], delta: Delta, rounds: Rounds, sample_rate: Share
) -> float:
    """Return the smallest noise multiplier of which `poisson_curve` proves (epsilon, delta).

    It is a number of single precision, found by halving, and never too small for the promise; so an
    epsilon stands for any that single precision rounds to it.
    """
    promised, (low, high) = epsilon * (1.0 - 2.0**-24), _NOISE
    bracket = [0.0, math.inf]  # the most noise known to be too little, the least known to do

    def log_excess(noise: float) -> float:
        spent = _smallest_epsilon(SEARCH_ORDERS, _poisson_curve(noise, rounds, sample_rate), delta)
        bracket[spent <= promised] = noise
        ratio = spent / promised
        return math.log(ratio) if 0.0 < ratio < math.inf else math.nan

    # Epsilon is nearly a power of the noise, so that secants narrow the bracket in a few steps.
    # Halving decides the last digit; it computes only what the bracket leaves open.
    guess = max(sample_rate * math.sqrt(-2.0 * rounds * math.log(delta)) / epsilon, low)
    place, slope = math.log(guess), -1.0
    excess = log_excess(math.exp(place))
    for _ in range(_SECANTS):
        if not abs(excess) > 1e-10:  # found, or beyond what has a logarithm
            break
        step = min(max(-excess / slope, -5.0), 5.0)
        further = log_excess(math.exp(place + step))
        place, slope, excess = place + step, (further - excess) / step or -1.0, further
    for near in (math.exp(place - _PRECISION), math.exp(place + _PRECISION)):
        if bracket[0] < near < bracket[1]:
            log_excess(near)
    while high > low * (1.0 + 1e-9):
        middle = math.sqrt(low * high)
        if bracket[0] < middle < bracket[1]:
            log_excess(middle)
        low, high = (low, middle) if middle >= bracket[1] else (middle, high)
    return float(np.nextafter(np.float32(high), np.float32(np.inf)))


_SECANTS: Final = 12
_PRECISION: Final = 2e-9
_NOISE: Final = (1e-3, 1e15)
"""Noise multipliers among which the smallest is looked for: the last one hides everything."""


@validate_call
def epsilon_from_renyi(orders: Sequence[int], renyi: Sequence[Divergence], delta: Delta) -> float:
    """Return the smallest epsilon, or infinity, that the Renyi divergences prove at ``delta``.

    ``min_a r_a + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)`` (Canonne, Kamath and Steinke,
    2020, Proposition 12), and 0 where a divergence already bounds the total variation distance by
    delta (``KL <= -log(1 - delta^2)``).
    """
    if len(orders) != len(renyi) or not orders or min(orders) <= 1:
        raise InvalidArgumentError(
            f"`orders` must match `renyi` one to one and exceed 1, got {short_repr(orders)}."
        )
    return _smallest_epsilon(orders, np.array(renyi, dtype=np.float64), delta)


def _smallest_epsilon(orders: Sequence[int], renyi: Floats, delta: float) -> float:
    if delta**2 + math.expm1(-renyi.min()) >= 0:
        return 0.0
    order_terms, delta_terms = conversion_terms(tuple(orders), delta)
    return max(0.0, float((renyi + order_terms - delta_terms).min()))


@lru_cache(maxsize=16)
def conversion_terms(orders: tuple[int, ...], delta: float) -> tuple[Floats, Floats]:
    """Return the two (orders,) terms of `epsilon_from_renyi` that depend on no divergence."""
    # Not numpy's logarithms, whose last bits depend on the processor.
    order_terms = [math.log1p(-1 / order) for order in orders]
    delta_terms = [(math.log(delta) + math.log(order)) / (order - 1) for order in orders]
    return np.array(order_terms), np.array(delta_terms)


DISTRIBUTIONS = ("geometric", "poisson")
"""How the number of trials is drawn."""


@validate_call
def selection_epsilon(
    renyi: ArrayLike,
    mean: float,
    delta: Delta,
    distribution: str = "geometric",
    orders: Sequence[int] = SEARCH_ORDERS,
) -> float:
    """Return the epsilon of showing the best of a random number of independent trials.

    `renyi` (orders,) is that of the worst trial that may be drawn, `mean` the expected number,
    `distribution` that of the number, as `selected_renyi` takes it.
    """
    selected = selected_renyi(renyi, mean, distribution, orders)
    return epsilon_from_renyi(orders, selected.tolist(), delta)


@validate_call
def selected_renyi(
    renyi: ArrayLike,
    mean: Annotated[float, Range(1, ends="[)")],
    distribution: str = "geometric",
    orders: Sequence[int] = SEARCH_ORDERS,
) -> Floats:
    """Return the (orders,) Renyi divergences of showing the best of K independent trials.

    With r_a the divergence of one trial at order a, and m the mean of K, they are

    - "geometric": ``r_a + 2 min_b ((1 - 1/b) r_b + log(m) / b) + log(m) / (a - 1)``: Papernot and
      Steinke (2022), Theorem 2, whose eta is 1 and gamma 1/m. For pure epsilon it is 3 epsilon, as
      Liu and Talwar (2019) found.
    - "poisson": ``r_a + m d + log(m) / (a - 1)``, their Theorem 6, with d the delta that one trial
      proves at ``epsilon = log(1 + 1 / (a - 1))``. K may be 0: then nothing is shown.
    """
    each, one = np.asarray(orders, dtype=np.float64), np.asarray(renyi, dtype=np.float64)
    if one.shape != each.shape or not len(each) or not (each > 1).all():
        raise InvalidArgumentError(
            f"`renyi` must be one divergence per order above 1, got the shapes {one.shape} and "
            f"{each.shape}"
        )
    if not (one >= 0).all():  # NaN is not, either
        raise InvalidArgumentError(
            f"`renyi` must hold no negative number and no NaN, got {short_repr(renyi)}"
        )
    require_known("distribution", distribution, DISTRIBUTIONS)
    common = one + math.log(mean) / (each - 1.0)
    if distribution == "geometric":
        return np.asarray(common + 2.0 * np.min((1.0 - 1.0 / each) * one + math.log(mean) / each))
    deltas = [_delta(each, one, math.log1p(1.0 / (order - 1.0))) for order in each.tolist()]
    return np.asarray(common + mean * np.array(deltas))


def _delta(orders: Floats, renyi: Floats, epsilon: float) -> float:
    """Return the smallest delta proved at epsilon, by Proposition 12 or Bretagnolle and Huber."""
    logs = (orders - 1.0) * (renyi - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(float(logs.min()), 0.0)), math.sqrt(-math.expm1(-renyi.min())))
