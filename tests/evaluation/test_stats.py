"""Statistics: by hand, beside the formulas of scipy, rliable and autorank, and their laws."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import (
    _find_groups,
    area,
    binomial_tail,
    bootstrap_band,
    bootstrap_interval,
    chi2_tail,
    critical_difference,
    data_profile,
    ecdf,
    friedman,
    holm,
    interquartile_mean,
    mean_ranks,
    nemenyi,
    normal_tail,
    normalised_regret,
    overtuning,
    probability_of_improvement,
    range_tail,
    rank_sum,
    ranks,
    relative_overtuning,
    sign_test,
    wilcoxon,
    wilcoxon_holm,
)

scipy_stats = pytest.importorskip("scipy.stats")


def draws(blocks: int, agents: int, key: int, ties: bool = False) -> np.ndarray:
    rng = stream(7, "test_hypotheses", key)
    values = rng.normal(size=(blocks, agents)) + 0.4 * np.arange(agents)
    return np.round(values) if ties else values


@pytest.mark.parametrize("ties", [False, True])
def test_ranks_share_ties_as_scipy_does(ties: bool) -> None:
    values = draws(30, 6, 0, ties)
    np.testing.assert_array_equal(ranks(values), scipy_stats.rankdata(values, axis=1))
    assert ranks(values).sum(axis=1) == pytest.approx(6 * 7 / 2)


def test_ranks_by_hand() -> None:
    values = np.array([[0.1, 0.3, 0.3, np.inf, np.inf], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert ranks(values).tolist() == [[1, 2.5, 2.5, 4.5, 4.5], [5, 4, 3, 2, 1]]
    assert mean_ranks(values).tolist() == [3, 3.25, 2.75, 3.25, 2.75]


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_is_scipys(ties: bool) -> None:
    values = draws(12, 5, 1, ties)
    expected = scipy_stats.friedmanchisquare(*values.T)
    found = friedman(values)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_friedman_by_hand() -> None:
    # Ranks 1 2 3 in all four blocks: 12 / (4 * 3 * 4) * (16 + 64 + 144) - 3 * 4 * 4 = 8.
    found = friedman(np.tile([0.0, 1.0, 2.0], (4, 1)))
    assert found.statistic == pytest.approx(8.0)
    assert found.p_value == pytest.approx(np.exp(-4))
    assert friedman(np.zeros((4, 3))).p_value == 1.0


def test_nemenyi_is_the_studentised_range() -> None:
    values = draws(10, 4, 2)
    found, p_values = mean_ranks(values), nemenyi(values)
    for a, b in product(range(4), repeat=2):
        scaled = abs(found[a] - found[b]) / np.sqrt(4 * 5 / (12 * 10))
        expected = scipy_stats.studentized_range.sf(scaled, 4, np.inf)
        assert p_values[a, b] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("blocks", [5, 20, 80])
def test_wilcoxon_is_scipys(blocks: int) -> None:
    x, y = draws(blocks, 2, 3).T
    method = "exact" if blocks <= 50 else "approx"
    expected = scipy_stats.wilcoxon(x, y, method=method, correction=False)
    assert wilcoxon(x, y) == pytest.approx(expected.pvalue)


def test_wilcoxon_with_zeros_and_ties_counts_every_sign() -> None:
    x, y = np.array([1.0, 2, 3, 3, 5, 9, 4]), np.array([1.0, 3, 2, 1, 3, 4, 4])
    ranked = ranks(np.abs(x - y))[x != y]
    plus = ranked[(x - y)[x != y] > 0].sum()
    sums = np.array([np.dot(signs, ranked) for signs in product((0, 1), repeat=len(ranked))])
    both = 2 * min(np.mean(sums <= plus), np.mean(sums >= plus))
    assert wilcoxon(x, y) == pytest.approx(both)


def test_wilcoxon_with_many_zeros_is_scipys_pratt() -> None:
    rng = stream(1, "zeros")
    x, y = rng.integers(0, 4, size=(2, 200)).astype(float)
    expected = scipy_stats.wilcoxon(x, y, zero_method="pratt", method="approx")
    assert wilcoxon(x, y) == pytest.approx(expected.pvalue)


def test_wilcoxon_of_equals_and_of_infinities() -> None:
    x = np.array([1.0, np.inf, 2.0])
    assert wilcoxon(x, x) == 1.0
    # Three differences, all in favour of one: two of eight signs.
    assert wilcoxon(np.array([1.0, 1, 2]), np.array([np.inf, 2, 4])) == pytest.approx(2 / 8)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


def test_the_sign_test_counts_and_is_scipys() -> None:
    x, y = np.array([1.0] * 13 + [3.0] * 7 + [2.0] * 2), np.full(22, 2.0)
    found = sign_test(x, y)
    assert str(found) == "13/2/7"
    assert found.p_value == pytest.approx(
        scipy_stats.binomtest(13, 20, alternative="greater").pvalue
    )
    assert found.p_value == pytest.approx(0.1316, abs=5e-5)


def test_wilcoxon_holm_is_symmetric_and_adjusted() -> None:
    values = draws(14, 3, 6)
    pairs = [(1, 0), (2, 0), (2, 1)]
    raw = [scipy_stats.wilcoxon(values[:, a], values[:, b]).pvalue for a, b in pairs]
    found = wilcoxon_holm(values)
    assert [found[a, b] for a, b in pairs] == pytest.approx(holm(raw))
    np.testing.assert_array_equal(found, found.T)
    assert np.diag(found).tolist() == [1, 1, 1]


def test_groups_of_a_critical_difference_are_the_longest_alike() -> None:
    # Eight blocks: a wins all, b and c share the rest; p = 2 / 2^8 for a, Holm: times 3.
    values = np.array([[0.0, 1, 2], [0.0, 2, 1]] * 4) + 0.0
    values *= 1 + np.arange(8)[:, None]
    found = critical_difference(values, ["a", "b", "c"])
    assert found.agents == ("a", "b", "c")
    assert found.ranks.tolist() == [1, 2.5, 2.5]
    assert found.groups == ((1, 2),)
    assert found.p_values[0, 1] == pytest.approx(3 * 2 / 2**8)


def test_groups_may_overlap_and_hold_no_pair_that_differs() -> None:
    alike = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=bool)
    assert _find_groups(alike) == ((0, 1), (1, 2))
    assert _find_groups(np.ones((3, 3), dtype=bool)) == ((0, 2),)


def test_where_friedman_sees_nothing_all_are_one_group() -> None:
    values = np.array([[0.0, 1, 2], [1.0, 0, 2], [2.0, 1, 0]])
    assert critical_difference(values, ["a", "b", "c"]).groups == ((0, 2),)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least two columns"):
        friedman(np.zeros((3, 1)))


@pytest.mark.parametrize(
    ("number", "shape", "gap", "p_value", "distance", "order", "groups"),
    [
        (0, (12, 4), 0.6, 0.052636266008723405, 1.3539901117469855, [0, 1, 2, 3], [(0, 3)]),
        (
            1, (24, 6), 0.5, 7.991525715701781e-12, 1.538997052406814, [0, 1, 2, 3, 5, 4],
            [(0, 1), (1, 3), (3, 5)],
        ),
    ],
)  # fmt: skip
def test_friedman_and_nemenyi_are_autoranks(
    number: int,
    shape: tuple[int, int],
    gap: float,
    p_value: float,
    distance: float,
    order: list[int],
    groups: list[tuple[int, int]],
) -> None:
    """The figures are of autorank 1.3.0 on the same draws, in an environment of its own."""
    values = stream(number, "autorank").normal(size=shape) + gap * np.arange(shape[1])
    assert friedman(values).p_value == pytest.approx(p_value, rel=1e-9)
    blocks, agents = shape
    q = distance * np.sqrt(12 * blocks / (agents * (agents + 1)))
    # It takes the quantile from a table of few digits.
    assert range_tail(q, agents) == pytest.approx(0.05, rel=1e-3)
    assert np.argsort(mean_ranks(values)).tolist() == order
    alike = nemenyi(values)[np.ix_(order, order)] > 0.05
    assert list(_find_groups(alike)) == groups


def test_the_rank_sum_test_counts_every_way_to_draw_a_sample() -> None:
    rng = stream(3, "rank_sum")
    for first, second, values in ((3, 4, 5), (5, 2, 100), (1, 6, 3), (4, 4, 2)):
        x = rng.integers(values, size=first).astype(float)
        y = rng.integers(values, size=second).astype(float)
        ranked = scipy_stats.rankdata(np.concatenate([x, y]))
        sums = np.array([sum(one) for one in combinations(ranked, first)])
        far = np.abs(sums - sums.mean()) >= abs(ranked[:first].sum() - sums.mean()) - 1e-9
        assert rank_sum(x, y) == pytest.approx(far.mean(), rel=1e-12)
    x, y = rng.normal(size=40), rng.normal(0.5, size=30)
    expected = scipy_stats.mannwhitneyu(x, y, method="asymptotic", use_continuity=False).pvalue
    assert rank_sum(x, y) == pytest.approx(expected, rel=1e-9)
    assert rank_sum(np.ones(40), np.ones(30)) == rank_sum(np.ones(2), np.ones(3)) == 1.0


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


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="freedom"):
        chi2_tail(1.0, 0)
    with pytest.raises(InvalidArgumentError, match="groups"):
        range_tail(1.0, 1)


@pytest.mark.parametrize("count", [1, 4, 7, 50])
def test_the_interquartile_mean_is_scipys_trimmed_mean(count: int) -> None:
    values = stream(0, "iqm").normal(size=count)
    assert interquartile_mean(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


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
