"""Tail probabilities beside scipy's."""

from __future__ import annotations

import pytest

from fedhpo_gym.analysis.stats import binomial_tail, chi2_tail, normal_tail, range_tail
from fedhpo_gym.core.errors import InvalidArgumentError

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("z", [-3.0, 0.0, 1.96, 6.0])
def test_normal(z: float) -> None:
    assert normal_tail(z) == pytest.approx(scipy_stats.norm.sf(z), rel=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 12])
@pytest.mark.parametrize("x", [1e-3, 0.7, 3.84, 20.0, 90.0])
def test_chi_squared(x: float, freedom: int) -> None:
    assert chi2_tail(x, freedom) == pytest.approx(scipy_stats.chi2.sf(x, freedom), rel=1e-10)


def test_chi_squared_at_zero_is_certain() -> None:
    assert chi2_tail(0.0, 3) == 1.0
    assert chi2_tail(-1.0, 3) == 1.0


@pytest.mark.parametrize(("wins", "trials"), [(0, 0), (0, 5), (13, 20), (20, 20), (300, 500)])
def test_binomial(wins: int, trials: int) -> None:
    expected = scipy_stats.binom.sf(wins - 1, trials, 0.5)
    assert binomial_tail(wins, trials) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("groups", [2, 3, 10])
@pytest.mark.parametrize("q", [0.5, 2.0, 3.5, 6.0])
def test_studentised_range(q: float, groups: int) -> None:
    expected = scipy_stats.studentized_range.sf(q, groups, float("inf"))
    assert range_tail(q, groups) == pytest.approx(expected, abs=1e-8)


def test_quantiles_of_the_range_are_those_of_the_tables() -> None:
    # Demsar (2006), table 5: q_0.05 / sqrt(2) for 2 to 10 classifiers.
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    found = [range_tail(q * 2**0.5, groups) for groups, q in enumerate(printed, start=2)]
    assert found == pytest.approx([0.05] * 9, abs=2e-4)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="freedom"):
        chi2_tail(1.0, 0)
    with pytest.raises(InvalidArgumentError, match="groups"):
        range_tail(1.0, 1)
