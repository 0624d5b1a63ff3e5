"""Accounting of differential privacy: the privacy spent by evaluations, as finite vectors.

It computes Renyi divergences, at integer orders, of Gaussian mechanisms with client sampling, and
converts them to (epsilon, delta) (Canonne, Kamath and Steinke, 2020). Environments use it for
observations and objectives, private algorithms for their noise. Adjacent data sets differ by one
replaced sample of one client, and in `poisson_curve` by the presence of one client.
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
"""Largest epsilon or Renyi divergence of a ledger; it means "no guarantee"."""

SEARCH_ORDERS: Final = range(2, 256)
"""Renyi orders over which the accountant minimizes epsilon."""

Rounds = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Divergence = Annotated[float, Range(0)]
Capped = Annotated[float, Range(0, CAP)]
Delta = Annotated[float, Range(0, 1, "()")]
Noise = Annotated[float, Range(0, ends="[)")]


class Spent:
    """Base of the resources that evaluations spend; a ledger alone has no costs."""

    @property
    def privacy(self) -> Any:
        """The privacy spent; for a ledger, the ledger itself."""
        return self

    @property
    def costs(self) -> Mapping[str, float | Floats]:
        """The costs by name, if they are known."""
        raise InvalidArgumentError(
            "`spent` must be a `Spending`, which has costs, to compute an objective of costs; got "
            "the privacy spent alone"
        )


@dataclass(frozen=True)
class PrivacyLedger(Spent):
    """The privacy spent so far; every field is finite, so it fits into an observation.

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
"""No guarantee: all values at their caps, none infinite."""


@validate_call
def ledger_of(divergences: Sequence[float], delta: Delta) -> PrivacyLedger:
    """Return the ledger implied by Renyi divergences at `SEARCH_ORDERS`, capped at ``CAP``."""
    curve = np.array(divergences, dtype=np.float64)
    if len(curve) != len(SEARCH_ORDERS) or not (curve >= 0).all():  # also False for NaN
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
    """Return a bound, at `SEARCH_ORDERS`, on the divergence of a composed subsampled Gaussian.

    In each of T rounds a share q of the clients is sampled; adjacent data sets differ by one sample
    of one client that is replaced. With noise multiplier z, the standard deviation of the noise
    over the clipping norm, the bound at order a is, in nats, ``T / (a - 1) log(1 - q + q exp(a (a -
    1) / (2 z^2)))``; infinite without noise.

    A round without the client has the same distribution for both data sets, a round with it is a
    Gaussian mechanism, and exp((a - 1) D_a) is jointly convex (van Erven and Harremoes, 2014,
    Section III). The bound is tight if the sampled clients are public. Amplification by secret
    sampling (Wang, Balle and Kasiviswanathan, 2019, Theorem 9) does not apply: it assumes that
    replacing a client changes no more than replacing a sample, but uploads arrive one by one.
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
    """Return the Renyi divergence at `SEARCH_ORDERS` of a Gaussian with Poisson sampling.

    In each of T rounds every client participates with probability q, in secret; the clipped updates
    are summed and noised. Adjacent data sets differ by the presence of one client. At order a and
    noise multiplier z, a round's divergence is ``1 / (a - 1) log sum_k binom(a, k) (1 - q)^(a - k)
    q^k exp(k (k - 1) / (2 z^2))`` (Mironov, Talwar and Zhang, 2019, Section 3.3).
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
    log_terms = np.where(_REMAINDERS >= 0, _log_weights(sample_rate) + _PAIRS * growth, -np.inf)
    per_round = np.logaddexp.reduce(log_terms, axis=1) / (_ORDERS - 1.0)
    # Rounding can leave a logarithm of 1 a hair below 0.
    return np.asarray(rounds * np.maximum(per_round, 0.0))


_ORDERS: Final = np.array(SEARCH_ORDERS, dtype=np.float64)
_K: Final = np.arange(SEARCH_ORDERS.stop, dtype=np.float64)
_PAIRS: Final = _K * (_K - 1.0)
_REMAINDERS: Final = _ORDERS[:, None] - _K  # (orders, k)
_LOG_FACTORIAL: Final = np.array([math.lgamma(n + 1.0) for n in range(SEARCH_ORDERS.stop)])


@lru_cache(maxsize=16)
def _log_weights(sample_rate: float) -> Floats:
    """Return the (orders, k) logarithms of binomial weights; entries with k > order are unused."""
    log_binomials = _LOG_FACTORIAL[SEARCH_ORDERS.start : SEARCH_ORDERS.stop, None] - _LOG_FACTORIAL
    log_binomials = log_binomials - _LOG_FACTORIAL[np.maximum(_REMAINDERS, 0).astype(np.int64)]
    return np.asarray(
        log_binomials + _REMAINDERS * math.log1p(-sample_rate) + _K * math.log(sample_rate)
    )


@lru_cache(maxsize=4096)
@validate_call
def planned_noise(
    epsilon: Annotated[float, Range(0, ends="(]")], delta: Delta, rounds: Rounds, sample_rate: Share
) -> float:
    """Return the smallest noise multiplier for which `poisson_curve` implies (epsilon, delta).

    It is found by bisection, and rounded up to single precision so that the guarantee holds. An
    epsilon therefore stands for all values that single precision rounds to it.
    """
    promised, (low, high) = epsilon * (1.0 - 2.0**-24), _NOISE
    bracket = [0.0, math.inf]  # largest multiplier known to be too small, smallest sufficient

    def log_excess(noise: float) -> float:
        spent_epsilon = _smallest_epsilon(
            SEARCH_ORDERS, _poisson_curve(noise, rounds, sample_rate), delta
        )
        bracket[spent_epsilon <= promised] = noise
        ratio = spent_epsilon / promised
        return math.log(ratio) if 0.0 < ratio < math.inf else math.nan

    # Epsilon is nearly a power of the noise, so the secant method narrows the bracket in a few
    # steps. The bisection then decides the last digit, and evaluates only points in the bracket.
    guess = max(sample_rate * math.sqrt(-2.0 * rounds * math.log(delta)) / epsilon, low)
    log_z, slope = math.log(guess), -1.0
    excess = log_excess(math.exp(log_z))
    for _ in range(_SECANTS):
        if not abs(excess) > 1e-10:  # converged, or the logarithm is NaN
            break
        step = min(max(-excess / slope, -5.0), 5.0)
        next_excess = log_excess(math.exp(log_z + step))
        log_z, slope, excess = log_z + step, (next_excess - excess) / step or -1.0, next_excess
    for candidate in (math.exp(log_z - _PRECISION), math.exp(log_z + _PRECISION)):
        if bracket[0] < candidate < bracket[1]:
            log_excess(candidate)
    while high > low * (1.0 + 1e-9):
        middle = math.sqrt(low * high)
        if bracket[0] < middle < bracket[1]:
            log_excess(middle)
        low, high = (low, middle) if middle >= bracket[1] else (middle, high)
    return float(np.nextafter(np.float32(high), np.float32(np.inf)))


_SECANTS: Final = 12
_PRECISION: Final = 2e-9
_NOISE: Final = (1e-3, 1e15)
"""Search range of noise multipliers; the upper end gives complete privacy."""


@validate_call
def epsilon_from_renyi(orders: Sequence[int], renyi: Sequence[Divergence], delta: Delta) -> float:
    """Return the smallest epsilon, or infinity, that Renyi divergences imply at ``delta``.

    ``min_a r_a + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)`` (Canonne, Kamath and Steinke,
    2020, Proposition 12), and 0 if a divergence already bounds the total variation distance by
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
    """Return the two (orders,) terms of `epsilon_from_renyi` that need no divergences."""
    # The last bits of numpy's logarithms depend on the processor; those of `math` do not.
    order_terms = [math.log1p(-1 / order) for order in orders]
    delta_terms = [(math.log(delta) + math.log(order)) / (order - 1) for order in orders]
    return np.array(order_terms), np.array(delta_terms)


DISTRIBUTIONS = ("geometric", "poisson")
"""Distributions of the number of trials."""


@validate_call
def selection_epsilon(
    renyi: ArrayLike,
    mean: float,
    delta: Delta,
    distribution: str = "geometric",
    orders: Sequence[int] = SEARCH_ORDERS,
) -> float:
    """Return the epsilon of publishing the best of a random number of independent trials.

    `renyi` (orders,) bounds all trials, `mean` is their expected number, and `distribution` the
    distribution of the number, as in `selected_renyi`.
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
    """Return the (orders,) Renyi divergences of publishing the best of K independent trials.

    With r_a the divergence of one trial at order a, and m the mean of K, they are

    - "geometric": ``r_a + 2 min_b ((1 - 1/b) r_b + log(m) / b) + log(m) / (a - 1)``: Papernot and
      Steinke (2022), Theorem 2, whose eta is 1 and gamma 1/m. For pure epsilon it is 3 epsilon, as
      Liu and Talwar (2019) found.
    - "poisson": ``r_a + m d + log(m) / (a - 1)``, their Theorem 6, with d the delta that one trial
      implies at ``epsilon = log(1 + 1 / (a - 1))``. If K is 0, nothing is published.
    """
    a, r = np.asarray(orders, dtype=np.float64), np.asarray(renyi, dtype=np.float64)
    if r.shape != a.shape or not len(a) or not (a > 1).all():
        raise InvalidArgumentError(
            f"`renyi` must be one divergence per order above 1, got the shapes {r.shape} and "
            f"{a.shape}"
        )
    if not (r >= 0).all():  # also False for NaN
        raise InvalidArgumentError(
            f"`renyi` must hold no negative number and no NaN, got {short_repr(renyi)}"
        )
    require_known("distribution", distribution, DISTRIBUTIONS)
    common = r + math.log(mean) / (a - 1.0)
    if distribution == "geometric":
        return np.asarray(common + 2.0 * np.min((1.0 - 1.0 / a) * r + math.log(mean) / a))
    deltas = [_smallest_delta(a, r, math.log1p(1.0 / (order - 1.0))) for order in a.tolist()]
    return np.asarray(common + mean * np.array(deltas))


def _smallest_delta(orders: Floats, renyi: Floats, epsilon: float) -> float:
    """Return the smallest delta at epsilon, by Proposition 12 or Bretagnolle and Huber."""
    logs = (orders - 1.0) * (renyi - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(float(logs.min()), 0.0)), math.sqrt(-math.expm1(-renyi.min())))
