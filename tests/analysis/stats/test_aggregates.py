"""Aggregates, regret and bands: by hand, beside independent formulas, and their laws.

The figures of `rliable` 1.2.0 were made once by its functions on the same draws, in an environment
of its own (`aggregate_iqm`, `probability_of_improvement`, `run_score_deviation`), as the tests say.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.analysis.stats import (
    area,
    bootstrap_band,
    bootstrap_interval,
    data_profile,
    ecdf,
    interquartile_mean,
    normalised_regret,
    overtuning,
    probability_of_improvement,
    relative_overtuning,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("count", [1, 4, 7, 50])
def test_the_interquartile_mean_is_scipys_trimmed_mean(count: int) -> None:
    values = stream(0, "iqm").normal(size=count)
    assert interquartile_mean(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


def test_the_interquartile_mean_by_hand() -> None:
    assert interquartile_mean(np.array([[100.0, 1], [2, -50]])) == 1.5


def test_probability_of_improvement_is_mann_whitneys() -> None:
    rng = stream(0, "poi")
    x = [np.round(rng.normal(size=5), 1) for _ in range(6)]
    y = [np.round(rng.normal(0.2, size=7), 1) for _ in range(6)]
    u = [scipy_stats.mannwhitneyu(b, a).statistic / 35 for a, b in zip(x, y, strict=True)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(u))
    assert probability_of_improvement(x, y) == pytest.approx(1 - probability_of_improvement(y, x))
    assert probability_of_improvement(x, x) == pytest.approx(0.5)


def test_probability_of_improvement_by_hand() -> None:
    x, y = [np.array([1.0, 3.0])], [np.array([2.0, 3.0])]
    assert probability_of_improvement(x, y) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    with pytest.raises(InvalidArgumentError, match="same problems"):
        probability_of_improvement(x, [])


def test_an_ecdf_is_scipys() -> None:
    values, at = stream(0, "ecdf").integers(0, 6, size=40) / 5, np.linspace(-0.2, 1.2, 15)
    expected = scipy_stats.ecdf(values).cdf.evaluate(at)
    np.testing.assert_allclose(ecdf(values, at), expected)


def test_normalised_regret_by_hand() -> None:
    values = np.array([0.0, 1.0, 2.0, 5.0, np.inf])
    assert normalised_regret(values, 1.0, 3.0).tolist() == [0, 0, 0.5, 1, 1]
    assert normalised_regret(values, 1.0, 1.0).tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(InvalidArgumentError, match="at most `worst`"):
        normalised_regret(values, 2.0, 1.0)


def test_normalised_regret_forgets_the_unit() -> None:
    values = stream(0, "unit").normal(size=20)
    scaled = normalised_regret(3 * values + 7, 3 * values.min() + 7, 3 * values.max() + 7)
    np.testing.assert_allclose(
        scaled, normalised_regret(values, values.min(), values.max()), atol=1e-12
    )


def test_data_profiles_by_hand() -> None:
    curves = np.array([[1.0, 0.5, 0.05], [0.08, 0.08, 0.08]])
    assert data_profile(curves, 0.1).tolist() == [0.5, 0.5, 1.0]
    assert data_profile(curves, 0.0).tolist() == [0, 0, 0]
    assert data_profile(curves[:, ::-1], 0.1).tolist() == [1.0, 1.0, 1.0], "solved stays solved"


def test_areas_by_hand() -> None:
    steps = np.array([[4.0, 2.0, 7.0], [1.0, 1.0, 1.0]])
    assert area(steps, np.array([0.0, 1.0, 4.0])).tolist() == [2.5, 1.0]
    with pytest.raises(InvalidArgumentError, match="each above"):
        area(steps, np.array([0.0, 0.0, 1.0]))


def test_overtuning_by_hand() -> None:
    test = np.array([1.0, 0.4, 0.7])
    assert overtuning(test) == pytest.approx(0.3)
    assert relative_overtuning(test) == pytest.approx(0.5)
    assert relative_overtuning(np.array([1.0, 1.2])) == np.inf
    assert relative_overtuning(np.array([1.0, 0.2])) == 0
    assert overtuning(np.array([0.5])) == 0
    with pytest.raises(InvalidArgumentError, match="`test` must be"):
        overtuning(np.array([]))


def test_pointwise_bands_are_scipys_percentile_bootstrap() -> None:
    curves = stream(0, "curves").normal(size=(20, 3)) * [1.0, 5.0, 0.1]
    band = bootstrap_band(curves, seed=1, resamples=4000)
    for t in range(3):
        expected = scipy_stats.bootstrap(
            (curves[:, t],), np.mean, n_resamples=4000, method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
        width = expected.high - expected.low
        assert band.lower[t] == pytest.approx(expected.low, abs=0.06 * width)
        assert band.upper[t] == pytest.approx(expected.high, abs=0.06 * width)


def test_simultaneous_bands_cover_whole_curves_and_are_wider() -> None:
    rng = stream(0, "coverage")
    inside, inside_each = [], []
    for key in range(150):
        curves = rng.normal(size=(40, 12))
        band = bootstrap_band(curves, seed=key, level=0.9, resamples=300)
        inside.append(np.all((band.all_lower <= 0) & (band.all_upper >= 0)))
        inside_each.append(np.all((band.lower <= 0) & (band.upper >= 0)))
    # Nine in ten for the one; for the other 0.9^12 = 0.28, if the times are independent.
    assert 0.8 <= np.mean(inside) <= 0.97
    assert np.mean(inside_each) < 0.5


def test_bands_are_seeded_and_need_spread() -> None:
    curves = stream(0, "seeded").normal(size=(5, 4))
    one, again = bootstrap_band(curves, seed=3), bootstrap_band(curves, seed=3)
    np.testing.assert_array_equal(one.all_upper, again.all_upper)
    assert not np.array_equal(one.upper, bootstrap_band(curves, seed=4).upper)
    flat = bootstrap_band(np.tile([0.1, 0.7], (3, 1)))
    np.testing.assert_allclose(flat.all_upper, [0.1, 0.7])
    np.testing.assert_allclose(flat.lower, [0.1, 0.7])
    with pytest.raises(InvalidArgumentError, match="finite"):
        bootstrap_band(np.array([[np.inf]]))
    with pytest.raises(InvalidArgumentError, match="level"):
        bootstrap_band(curves, level=1.0)


def test_intervals_draw_within_samples() -> None:
    samples = [np.array([0.0, 0.0]), np.array([1.0, 1.0])]
    interval = bootstrap_interval(lambda drawn: float(np.mean(drawn)), samples)
    assert interval == (0.5, 0.5)  # runs of one problem never take another's place


def test_figures_are_those_of_rliable() -> None:
    rng = stream(0, "rliable")
    x = np.round(rng.normal(size=(9, 6)), 1)  # runs of six problems; higher is better there
    y = np.round(rng.normal(0.3, size=(7, 6)), 1)
    assert interquartile_mean(x) == pytest.approx(0.08214285714285714)
    assert interquartile_mean(y) == pytest.approx(0.7227272727272728)
    improvement = probability_of_improvement([*-x.T], [*-y.T])
    assert improvement == pytest.approx(0.32671957671957674)
    # It counts scores above a threshold: losses below the negative one.
    profile = ecdf(-x, -np.array([-1.0, 0.0, 0.5, 1.0]) - 1e-9)
    assert profile == pytest.approx([48 / 54, 31 / 54, 15 / 54, 7 / 54])
