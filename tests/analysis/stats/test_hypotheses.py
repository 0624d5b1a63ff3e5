"""Tests of hypotheses: by hand, beside scipy's, and their laws."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from fedhpo_gym.analysis.stats import (
    _groups,
    critical_difference,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    range_tail,
    rank_sum,
    ranks,
    sign_test,
    wilcoxon,
    wilcoxon_holm,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

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


@pytest.mark.parametrize("ours", ["two-sided", "less"])
@pytest.mark.parametrize("blocks", [5, 20, 80])
def test_wilcoxon_is_scipys(blocks: int, ours: str) -> None:
    x, y = draws(blocks, 2, 3).T
    method = "exact" if blocks <= 50 else "approx"
    expected = scipy_stats.wilcoxon(x, y, alternative=ours, method=method, correction=False)
    assert wilcoxon(x, y, ours) == pytest.approx(expected.pvalue)  # type: ignore[arg-type]


def test_wilcoxon_with_zeros_and_ties_counts_every_sign() -> None:
    x, y = np.array([1.0, 2, 3, 3, 5, 9, 4]), np.array([1.0, 3, 2, 1, 3, 4, 4])
    ranked = ranks(np.abs(x - y))[x != y]
    plus = ranked[(x - y)[x != y] > 0].sum()
    sums = np.array([np.dot(signs, ranked) for signs in product((0, 1), repeat=len(ranked))])
    assert wilcoxon(x, y, "less") == pytest.approx(np.mean(sums <= plus))
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
    # Three differences, all in favour of the first: one of eight signs.
    assert wilcoxon(np.array([1.0, 1, 2]), np.array([np.inf, 2, 4]), "less") == pytest.approx(1 / 8)


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


def test_swapping_agents_swaps_wins_and_losses() -> None:
    x, y = draws(15, 2, 4, ties=True).T
    one, other = sign_test(x, y), sign_test(y, x)
    assert (one.wins, one.ties, one.losses) == (other.losses, other.ties, other.wins)
    assert wilcoxon(x, y) == pytest.approx(wilcoxon(y, x))


def test_a_monotone_transform_changes_no_rank_test() -> None:
    values = draws(9, 4, 5)
    assert friedman(np.exp(values)).statistic == pytest.approx(friedman(values).statistic)
    np.testing.assert_allclose(nemenyi(np.exp(values)), nemenyi(values))


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
    assert _groups(alike) == ((0, 1), (1, 2))
    assert _groups(np.ones((3, 3), dtype=bool)) == ((0, 2),)


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
    assert list(_groups(alike)) == groups


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
