"""How Profet judges methods: by hand, and beside other definitions of the same."""

import numpy as np
import pytest
from profet_assessment import average_ranks, runtimes, superiority
from scipy.stats import mannwhitneyu

from fedhpo_gym.evaluation.stats import ecdf, probability_of_improvement, ranks


def test_runtimes_and_their_shares_by_hand() -> None:
    values = np.array([[[5.0, 3.0, 4.0, 1.0], [2.0, 2.0, 2.0, 2.0]]])
    found = runtimes(values, np.array([[3.0, 1.0, 0.5, 9.0]]))
    np.testing.assert_array_equal(found, [[[2, 4, np.inf, 1], [1, np.inf, np.inf, 1]]])
    np.testing.assert_array_equal(ecdf(found, np.array([1.0, 2.0, 4.0])), [3 / 8, 4 / 8, 5 / 8])


def test_a_single_run_has_its_own_rank() -> None:
    values = np.random.default_rng(0).random((3, 5, 1, 7))
    best = np.minimum.accumulate(values, axis=3)[:, :, 0]
    expected = ranks(best.transpose(1, 2, 0)).mean(axis=0).T
    np.testing.assert_allclose(average_ranks(values), expected)


def test_ranks_of_drawn_runs_share_all_there_are() -> None:
    values = np.random.default_rng(1).random((4, 3, 6, 5))
    values[2] -= 1.0
    found = average_ranks(values, resamples=200)
    np.testing.assert_allclose(found.sum(axis=0), 4 * 5 / 2)
    np.testing.assert_array_equal(found[2], 1.0)
    by_luck = average_ranks(np.array([[[[0.0], [2.0]]], [[[1.0], [1.0]]]]))
    np.testing.assert_allclose(by_luck, 1.5, atol=0.1)


def test_superiority_is_the_one_sided_test_of_each_pair() -> None:
    errors = np.random.default_rng(2).integers(0, 9, (3, 30)) + np.arange(3.0)[:, None]
    p, share = superiority(errors)
    test = mannwhitneyu(errors[0], errors[2], alternative="less", use_continuity=False)
    assert p[2, 0] == pytest.approx(test.pvalue)
    assert p[2, 0] < 0.05 < p[0, 2]
    np.testing.assert_allclose(p + p.T, 1.0)
    assert share[2, 0] == pytest.approx(probability_of_improvement([errors[0]], [errors[2]]))
    np.testing.assert_allclose(superiority(errors[None, [1, 0]])[0][0], p[:2, :2][::-1, ::-1])


def test_equal_errors_are_no_evidence() -> None:
    p, share = superiority(np.zeros((2, 10)))
    np.testing.assert_array_equal(p, 0.5)
    np.testing.assert_array_equal(share, 0.5)
