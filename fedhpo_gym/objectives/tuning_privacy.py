"""What all trials of a tuning together reveal, beside what each of them does.

Two ways to account for it. If everything that is trained is seen, Renyi divergences add up over the
trials (Mironov, 2017, Proposition 1). If nothing but the best model is ever shown, and the number
of trials is random, *private selection* costs far less (Liu and Talwar, 2019; Papernot and Steinke,
2022). It asks that trials are drawn alike and independently, as random search draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import checked_types, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.objectives.privacy import SEARCH_ORDERS, epsilon_from_renyi

DISTRIBUTIONS = ("geometric", "poisson")
"""How the number of trials is drawn."""


@checked_types
def selection_epsilon(
    renyi: ArrayLike,
    mean: float,
    delta: float,
    distribution: str = "geometric",
    orders: Sequence[int] = SEARCH_ORDERS,
) -> float:
    """Return the epsilon of showing the best of a random number of independent trials.

    Args:
        renyi: (orders,) Renyi divergence of one trial in nats, of the worst that may be drawn.
        mean: expected number of trials, 1 or more.
        delta: at which epsilon is stated, in (0, 1).
        distribution: "geometric" or "poisson"; see `selected_renyi`.
        orders: the orders, above 1.

    Returns:
        A non-negative epsilon; infinite when nothing is proved.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        UnknownNameError: there is no such distribution.
    """
    selected = selected_renyi(renyi, mean, distribution, orders)
    return epsilon_from_renyi(orders, selected.tolist(), delta)


@checked_types
def selected_renyi(
    renyi: ArrayLike,
    mean: float,
    distribution: str = "geometric",
    orders: Sequence[int] = SEARCH_ORDERS,
) -> NDArray[np.float64]:
    """Return the Renyi divergences of showing the best of K independent trials.

    With r_a the divergence of one trial at order a, and m the mean of K, they are

    - "geometric": ``r_a + 2 min_b ((1 - 1/b) r_b + log(m) / b) + log(m) / (a - 1)``: Papernot and
      Steinke (2022), Theorem 2, whose eta is 1 and gamma 1/m. For pure epsilon it is 3 epsilon, as
      Liu and Talwar (2019) found.
    - "poisson": ``r_a + m d + log(m) / (a - 1)``, their Theorem 6, with d the delta that one trial
      proves at ``epsilon = log(1 + 1 / (a - 1))``. K may be 0: then nothing is shown.

    Args:
        renyi: see `selection_epsilon`.
        mean: see `selection_epsilon`.
        distribution: of K.
        orders: see `selection_epsilon`.

    Returns:
        (orders,) divergences.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        UnknownNameError: there is no such distribution.
    """
    each, one = np.asarray(orders, dtype=np.float64), np.asarray(renyi, dtype=np.float64)
    if one.shape != each.shape or not len(each) or not (each > 1).all():
        raise InvalidArgumentError(
            f"`renyi` must be one divergence per order above 1, got the shapes {one.shape} and "
            f"{each.shape}"
        )
    if not (one >= 0).all():  # NaN is not, either
        raise InvalidArgumentError(
            f"`renyi` must hold no negative number and no NaN, got {shown(renyi)}"
        )
    if not 1 <= mean < math.inf:
        raise InvalidArgumentError(f"`mean` must be finite and at least 1, got {mean!r}")
    require_known("distribution", distribution, DISTRIBUTIONS)
    common = one + math.log(mean) / (each - 1.0)
    if distribution == "geometric":
        return np.asarray(common + 2.0 * np.min((1.0 - 1.0 / each) * one + math.log(mean) / each))
    deltas = [_delta(each, one, math.log1p(1.0 / (order - 1.0))) for order in each.tolist()]
    return np.asarray(common + mean * np.array(deltas))


def _delta(orders: NDArray[np.float64], renyi: NDArray[np.float64], epsilon: float) -> float:
    """Return the smallest delta that divergences prove at epsilon.

    Canonne, Kamath and Steinke (2020), Proposition 12, solved for delta, and Bretagnolle and
    Huber's bound of the total variation distance.
    """
    logs = (orders - 1.0) * (renyi - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(float(logs.min()), 0.0)), math.sqrt(-math.expm1(-renyi.min())))
