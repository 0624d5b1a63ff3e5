"""The accountants of training and of selection, against closed forms and published numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.objectives import (
    CAP,
    NO_PRIVACY,
    PRIVACY_NAMES,
    SEARCH_ORDERS,
    PrivacyLedger,
    ledger_of,
    planned_noise,
    poisson_curve,
    renyi_curve,
    selected_renyi,
    selection_epsilon,
)
from fedhpo_gym.objectives.privacy import DISTRIBUTIONS, ORDERS, epsilon_from_renyi


def renyi_gaussian(order: int, z: float, rounds: int, share: float) -> float:
    return float(renyi_curve(z, rounds, share)[SEARCH_ORDERS.index(order)])


def gaussian_ledger(
    noise_multiplier: float, rounds: int, sample_rate: float, delta: float
) -> PrivacyLedger:
    return ledger_of(renyi_curve(noise_multiplier, rounds, sample_rate).tolist(), delta)


def mixed(q: float, other: float, z: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log density at x of (1-q) N(0, z^2) + q N(other, z^2)."""
    logs = np.logaddexp(
        math.log1p(-q) - x**2 / (2 * z * z), math.log(q) - (x - other) ** 2 / (2 * z * z)
    )
    return np.asarray(logs - math.log(z * math.sqrt(2 * math.pi)))


def quadrature(order: int, z: float, q: float, first: float, second: float) -> float:
    """Renyi divergence between mixtures whose changed sample puts an upload at either place."""
    reach = 60 * z + 2 * order + order * max(abs(first), abs(second))
    x = np.linspace(-reach, reach, 400_001)
    p, r = mixed(q, first, z, x), mixed(q, second, z, x)
    # The integrand vanishes at both ends, where the trapezoid rule is a plain sum.
    logs = order * p + (1 - order) * r
    return float(np.log(np.sum(np.exp(logs)) * (x[1] - x[0]))) / (order - 1)


@pytest.mark.fast(4)
@pytest.mark.parametrize("order", [2, 3, 8])
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (2.0, 0.2), (4.0, 0.6), (4.0, 0.9)])
def test_no_replaced_sample_diverges_more(order: int, z: float, q: float) -> None:
    bound = renyi_gaussian(order, z, 1, q)
    # A round without the client says 0; its upload and the changed one are at most 1 apart. The
    # farther they are from 0, the plainer it is whether the client took part.
    for far in (0.0, 0.5, 2.0, 20.0):
        for first, second in ((far + 1.0, far), (far, far + 1.0), (far, -far)):
            if abs(first - second) <= 1.0:
                assert quadrature(order, z, q, first, second) <= bound * (1 + 1e-9)
    # Far enough, everybody sees who took part: then the bound is an equality.
    assert quadrature(order, z, q, 30.0 * z, 30.0 * z - 1.0) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_full_participation_is_the_plain_gaussian(order: int) -> None:
    assert renyi_gaussian(order, 2.0, 7, 1.0) == 7 * (order / 8)
    assert renyi_gaussian(order, 2.0, 7, 1 - 1e-12) == pytest.approx(7 * order / 8, rel=1e-6)


def test_nothing_sent_spends_nothing() -> None:
    assert renyi_gaussian(2, 1.0, 0, 0.5) == 0.0
    assert renyi_gaussian(2, 0.0, 5, 0.0) == 0.0
    assert gaussian_ledger(1.0, 0, 0.5, 1e-5) == PrivacyLedger(0.0, 1e-5, (0.0, 0.0, 0.0))


def test_no_noise_is_no_privacy() -> None:
    assert renyi_gaussian(2, 0.0, 1, 0.5) == math.inf
    assert renyi_gaussian(2, 1e-200, 1, 0.5) == math.inf
    assert renyi_gaussian(32, 1e-154, 500, 0.5) == math.inf
    for noise in (0.0, 1e-200, 1e-3):
        assert gaussian_ledger(noise, 10, 0.5, 1e-5) is NO_PRIVACY


def test_large_orders_do_not_overflow() -> None:
    assert math.isfinite(renyi_gaussian(255, 0.3, 1000, 0.5))


@pytest.mark.parametrize("change", ["noise_multiplier", "rounds", "sample_rate"])
def test_spending_is_monotone(change: str) -> None:
    base: dict[str, Any] = {"noise_multiplier": 1.0, "rounds": 100, "sample_rate": 0.05}
    more = {**base, change: {"noise_multiplier": 0.9, "rounds": 101, "sample_rate": 0.06}[change]}
    less_spent = gaussian_ledger(**base, delta=1e-5).vector()
    more_spent = gaussian_ledger(**more, delta=1e-5).vector()
    assert np.all(more_spent[[0, 2, 3]] > less_spent[[0, 2, 3]])


def test_ledger_searches_high_orders() -> None:
    # With much noise the best order is near sqrt(2 z^2 log(1/delta)) = 96.
    orders = range(2, 1000)
    expected = epsilon_from_renyi(orders, [a / (2 * 20.0**2) for a in orders], 1e-5)
    assert gaussian_ledger(20.0, 1, 1.0, 1e-5).epsilon == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rate", "epsilon"), [(0.2, 15.727), (0.4, 23.839), (0.6, 30.556), (0.8, 37.185), (1.0, 43.727)]
)
def test_epsilon_of_a_known_problem(rate: float, epsilon: float) -> None:
    # Nominal epsilon 10 on 42 numbers: the README's LR-CreditG with NbAFL.
    z = 500 / 10 / (2 * math.sqrt(42))
    assert gaussian_ledger(z, 500, rate, 1e-5).epsilon == pytest.approx(epsilon, abs=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    z=st.floats(0.3, 30.0),
    rounds=st.integers(1, 1000),
    share=st.floats(0.01, 1.0),
    highest=st.integers(2, 40),
)
def test_an_established_accountant_agrees(
    z: float, rounds: int, share: float, highest: int
) -> None:
    oracle = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    orders = list(range(2, highest + 1))

    def of_oracle(event: Any, relation: Any) -> float:
        accountant = oracle.rdp.RdpAccountant(orders, relation)
        accountant.compose(oracle.SelfComposedDpEvent(event, rounds))
        return float(accountant.get_epsilon(1e-5))

    def ours(rate: float) -> float:
        renyi = [renyi_gaussian(order, z, rounds, rate) for order in orders]
        return epsilon_from_renyi(orders, renyi, 1e-5)

    gaussian, relation = oracle.GaussianDpEvent(z), oracle.NeighboringRelation
    everybody = of_oracle(gaussian, relation.REPLACE_ONE)
    assert ours(1.0) == pytest.approx(everybody, rel=1e-9, abs=1e-9)
    # It knows the divergence exactly where the replaced sample is one that was not there, and
    # where nobody sees who took part: no bound for visible uploads is below that.
    sampled = oracle.PoissonSampledDpEvent(share, gaussian)
    known = of_oracle(sampled, relation.ADD_OR_REMOVE_ONE)
    assert known * (1 - 1e-9) - 1e-9 <= ours(share) <= everybody * (1 + 1e-9) + 1e-9


def test_conversion_at_the_edges() -> None:
    assert epsilon_from_renyi([2, 3], [0.0, math.inf], 1e-5) == 0.0
    assert epsilon_from_renyi([2], [math.inf], 1e-5) == math.inf
    # Total variation is at most delta when KL <= -log(1 - delta^2) = 0.2877 for delta = 1/2.
    assert epsilon_from_renyi([2], [0.287], 0.5) == 0.0
    assert epsilon_from_renyi([1000], [0.01], 0.9) == 0.0


def test_conversion_covers_the_exact_gaussian() -> None:
    # One Gaussian release: delta(eps) = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z).
    z, delta = 2.0, 1e-5

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    epsilon = gaussian_ledger(z, 1, 1.0, delta).epsilon
    exact = phi(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * phi(-1 / (2 * z) - epsilon * z)
    assert exact <= delta
    smaller = 0.8 * epsilon
    exact = phi(1 / (2 * z) - smaller * z) - math.exp(smaller) * phi(-1 / (2 * z) - smaller * z)
    assert exact > delta


def test_vector_follows_the_names() -> None:
    assert PRIVACY_NAMES == ("epsilon", "delta", "renyi_2", "renyi_8", "renyi_32")
    ledger = gaussian_ledger(2.0, 10, 0.1, 1e-5)
    expected = [ledger.epsilon, 1e-5] + [renyi_gaussian(a, 2.0, 10, 0.1) for a in (2, 8, 32)]
    assert ledger.vector() == pytest.approx(expected)
    ledger.vector()[:] = 0
    assert ledger.vector()[1] == 1e-5


def test_high_orders_are_capped() -> None:
    ledger = gaussian_ledger(1.0, 1000, 0.01, 1e-5)
    assert renyi_gaussian(32, 1.0, 1000, 0.01) > CAP
    assert ledger.renyi[2] == CAP
    assert ledger.epsilon < 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((-1.0, 0.1, (0.0, 0.0, 0.0)), r"`epsilon` must be in \[0, 10000\]"),
        ((math.inf, 0.1, (0.0, 0.0, 0.0)), "`epsilon` must be"),
        ((math.nan, 0.1, (0.0, 0.0, 0.0)), "`epsilon` must be"),
        ((1.0, 1.5, (0.0, 0.0, 0.0)), r"`delta` must be in \[0, 1\]"),
        ((1.0, 0.1, (0.0, 0.0, 2e4)), "`renyi` must be in"),
        ((1.0, 0.1, (0.0, 0.0)), "`renyi` must have one entry per order"),
    ],
)
def test_ledger_refuses_bad_fields(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        PrivacyLedger(*fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1, 0.5), "`noise_multiplier` must be at least 0 and finite"),
        ((math.nan, 1, 0.5), "`noise_multiplier` must be"),
        ((1.0, -1, 0.5), "`rounds` must be at least 0, got -1"),
        ((1.0, 1, 1.5), r"`sample_rate` must be in \[0, 1\]"),
    ],
)
def test_renyi_refuses_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        renyi_curve(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([2], [0.1], 0.0), r"`delta` must be in \(0, 1\)"),
        (([2], [0.1], 1.0), r"`delta` must be in \(0, 1\)"),
        (([2, 3], [0.1], 0.1), "`orders` must match"),
        (([], [], 0.1), "`orders` must match"),
        (([1], [0.1], 0.1), "`orders` must match"),
    ],
)
def test_conversion_refuses_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        epsilon_from_renyi(*arguments)


def test_poisson_sampling_by_hand() -> None:
    # At order 2 the sum is (1 - q)^2 + 2 q (1 - q) + q^2 exp(1 / z^2).
    q, z = 0.3, 1.5
    expected = 7 * math.log((1 - q) ** 2 + 2 * q * (1 - q) + q**2 * math.exp(1 / z**2))
    curve = poisson_curve(z, 7, q)
    assert curve[0] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(poisson_curve(z, 7, 1.0), renyi_curve(z, 7, 1.0), rtol=1e-12)
    assert (poisson_curve(z, 7, 1.0 - 1e-12) <= poisson_curve(z, 7, 1.0)).all()
    assert not poisson_curve(z, 0, q).any()
    assert not poisson_curve(z, 7, 0.0).any()
    assert (poisson_curve(0.0, 1, q) == math.inf).all()
    # Who may not be seen is hidden better than who is.
    assert (curve < renyi_curve(z, 7, q)).all()


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(z=st.floats(0.5, 20.0), rounds=st.integers(1, 1000), share=st.floats(0.01, 1.0))
def test_two_established_accountants_agree_on_poisson_sampling(
    z: float, rounds: int, share: float
) -> None:
    oracle = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    event = oracle.PoissonSampledDpEvent(share, oracle.GaussianDpEvent(z))
    event = oracle.SelfComposedDpEvent(event, rounds)
    ours = epsilon_from_renyi(SEARCH_ORDERS, poisson_curve(z, rounds, share).tolist(), 1e-5)
    renyi = oracle.rdp.RdpAccountant(list(SEARCH_ORDERS)).compose(event)
    assert ours == pytest.approx(renyi.get_epsilon(1e-5), rel=1e-7, abs=1e-9)


@pytest.mark.slow
def test_the_distribution_of_privacy_losses_says_less_than_renyi() -> None:
    oracle = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    for z, rounds, share in ((4.0, 200, 0.1), (1.5, 20, 1.0), (0.8, 5, 0.4)):
        event = oracle.PoissonSampledDpEvent(share, oracle.GaussianDpEvent(z))
        exact = oracle.pld.PLDAccountant().compose(oracle.SelfComposedDpEvent(event, rounds))
        ours = epsilon_from_renyi(SEARCH_ORDERS, poisson_curve(z, rounds, share).tolist(), 1e-5)
        # Numbers of losses are rounded up to multiples of 1e-4; Renyi bounds are some tenths loose.
        assert exact.get_epsilon(1e-5) - 1e-2 <= ours <= 1.5 * exact.get_epsilon(1e-5)


@pytest.mark.parametrize("rounds", [1, 500])
@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 1e6])
def test_planned_noise_keeps_its_promise_and_no_less_would(
    epsilon: float, share: float, rounds: int
) -> None:
    noise = planned_noise(epsilon, 1e-5, rounds, share)

    def spent(z: float) -> float:
        curve = poisson_curve(z, rounds, share).tolist()
        return epsilon_from_renyi(SEARCH_ORDERS, curve, 1e-5)

    assert noise == float(np.float32(noise))
    assert spent(noise) <= epsilon
    assert noise < 1.001e-3 or spent(noise * (1 - 1e-6)) > epsilon


@pytest.mark.parametrize("given", [(0.0, 1e-5, 1, 0.5), (1.0, 0.0, 1, 0.5), (1.0, 1e-5, 1, 1.5)])
def test_planned_noise_refuses(given: tuple[float, float, int, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        planned_noise(*given)


DELTA = 1e-5


def test_geometric_by_hand() -> None:
    # Orders 2 and 4, divergences 1 and 2, ten trials on average. The minimum is at order 4:
    # 3/4 x 2 + log(10) / 4 = 2.0756, against 1/2 x 1 + log(10) / 2 = 1.6513 at order 2.
    log10 = math.log(10)
    least = 0.5 + log10 / 2
    assert least < 1.5 + log10 / 4
    found = selected_renyi([1.0, 2.0], 10, "geometric", [2, 4])
    assert found == pytest.approx([1.0 + 2 * least + log10, 2.0 + 2 * least + log10 / 3])


def test_poisson_by_hand() -> None:
    # Order 2, divergence 0.01, five trials. At epsilon log 2, order 2 proves
    # delta = exp(0.01 - log 2 + log(1/2)) / 2 = exp(0.01) / 8, and the bound of the total variation
    # sqrt(1 - exp(-0.01)) = 0.09975 is smaller.
    assert math.exp(0.01) / 8 > math.sqrt(-math.expm1(-0.01))
    expected = 0.01 + 5 * math.sqrt(-math.expm1(-0.01)) + math.log(5)
    assert selected_renyi([0.01], 5, "poisson", [2]) == pytest.approx([expected])
    # With divergence 0.5 it is the other way round.
    assert math.exp(0.5) / 8 < math.sqrt(-math.expm1(-0.5))
    expected = 0.5 + 5 * math.exp(0.5) / 8 + math.log(5)
    assert selected_renyi([0.5], 5, "poisson", [2]) == pytest.approx([expected])


def test_pure_privacy_is_tripled() -> None:
    """Liu and Talwar (2019): with a geometric number of trials, epsilon becomes 3 epsilon."""
    orders = [10**6, 10**9]
    found = selected_renyi([0.1, 0.1], 50, "geometric", orders)
    assert found[-1] == pytest.approx(0.3, rel=1e-4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    z=st.floats(0.8, 50.0),
    rounds=st.integers(1, 20),
    mean=st.floats(1.0, 1e4),
    distribution=st.sampled_from(DISTRIBUTIONS),
)
def test_an_established_accountant_agrees_on_selection(
    z: float, rounds: int, mean: float, distribution: str
) -> None:
    oracle = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    shape = {"geometric": 1, "poisson": math.inf}[distribution]
    event = oracle.SelfComposedDpEvent(oracle.GaussianDpEvent(z), rounds)
    accountant = oracle.rdp.RdpAccountant(
        list(SEARCH_ORDERS), oracle.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(oracle.dp_event.RepeatAndSelectDpEvent(event, mean, shape))
    ours = selection_epsilon(renyi_curve(z, rounds, 1.0), mean, DELTA, distribution)
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


def test_composition_adds_up_over_trials() -> None:
    oracle = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    trials = [(1.0, 3), (2.5, 10), (8.0, 100)]
    together = sum(renyi_curve(z, rounds, 1.0) for z, rounds in trials)
    accountant = oracle.rdp.RdpAccountant(
        list(SEARCH_ORDERS), oracle.NeighboringRelation.REPLACE_ONE
    )
    for z, rounds in trials:
        accountant.compose(oracle.SelfComposedDpEvent(oracle.GaussianDpEvent(z), rounds))
    ledger = ledger_of(np.asarray(together).tolist(), DELTA)
    assert ledger.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    assert ledger.renyi[0] == pytest.approx(3 / 1 + 10 / 6.25 + 100 / 64)
    # Equal trials are one longer one.
    assert ledger_of((4 * renyi_curve(2.0, 5, 0.3)).tolist(), DELTA) == gaussian_ledger(
        2.0, 20, 0.3, DELTA
    )


@pytest.mark.slow
@given(st.floats(1.0, 1e6), st.sampled_from(DISTRIBUTIONS))
def test_selection_costs_more_than_a_trial_and_rises_with_trials(
    mean: float, distribution: str
) -> None:
    curve = renyi_curve(20.0, 5, 0.5)
    once = gaussian_ledger(20.0, 5, 0.5, DELTA).epsilon
    found = selection_epsilon(curve, mean, DELTA, distribution)
    assert once <= found <= selection_epsilon(curve, 2 * mean, DELTA, distribution)


def test_selection_beats_composition_of_many_trials() -> None:
    curve = renyi_curve(5.0, 1, 1.0)
    composed = ledger_of((1000 * curve).tolist(), DELTA).epsilon
    assert selection_epsilon(curve, 1000, DELTA) < composed / 10


def test_no_noise_proves_nothing() -> None:
    for distribution in DISTRIBUTIONS:
        assert selection_epsilon(renyi_curve(0.0, 1, 1.0), 3, DELTA, distribution) == math.inf


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"at least 1 and finite, got 0\.5"):
        selected_renyi([1.0], 0.5, orders=[2])
    with pytest.raises(InvalidArgumentError, match="one divergence per order"):
        selected_renyi([1.0, 2.0], 2, orders=[2])
    with pytest.raises(UnknownNameError, match="poisson"):
        selected_renyi([1.0], 2, "poison", [2])
