"""Private selection and composition: by hand, as limits, and as an established library has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.objectives import (
    SEARCH_ORDERS,
    ledger_of,
    renyi_curve,
    selected_renyi,
    selection_epsilon,
)
from fedhpo_gym.objectives.privacy import DISTRIBUTIONS, gaussian_ledger

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


@settings(max_examples=8, deadline=None)
@given(
    z=st.floats(0.8, 50.0),
    rounds=st.integers(1, 20),
    mean=st.floats(1.0, 1e4),
    distribution=st.sampled_from(DISTRIBUTIONS),
)
def test_an_established_accountant_agrees(
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
    with pytest.raises(InvalidArgumentError, match=r"at least 1, got 0\.5"):
        selected_renyi([1.0], 0.5, orders=[2])
    with pytest.raises(InvalidArgumentError, match="one divergence per order"):
        selected_renyi([1.0, 2.0], 2, orders=[2])
    with pytest.raises(UnknownNameError, match="poisson"):
        selected_renyi([1.0], 2, "poison", [2])
