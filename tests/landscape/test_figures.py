"""Rank correlation, functional analysis of variance, and what label frequencies reach, by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from fedhpo_gym.backends.training import label_frequencies
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.fronts import kendall
from fedhpo_gym.stored.health import variance_shares


def test_kendall_by_hand() -> None:
    # Of six pairs, 5 agree and 1 (the first) does not.
    assert kendall([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(4 / 6)
    # One pair is tied in the second list: 5 / sqrt(6 * 5).
    assert kendall([1, 2, 3, 4], [1, 1, 3, 4]) == pytest.approx(5 / math.sqrt(30))
    assert math.isnan(kendall([1, 2], [3, 3]))


@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_kendall_is_that_of_scipy(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.evaluation.fronts._PAIRS_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 20, (2, 60)).astype(float)
    other += one
    assert kendall(one, other) == pytest.approx(kendalltau(one, other).statistic, abs=1e-12)
    one[:3] = np.inf
    ranked = np.where(np.isinf(one), 1e9, one)
    assert kendall(one, other) == pytest.approx(kendalltau(ranked, other).statistic, abs=1e-12)


@pytest.mark.parametrize("lists", [([1, 2], [1]), ([1, float("nan")], [1, 2]), ([[1]], [[1]])])
def test_what_cannot_be_ranked_is_refused(lists: tuple[list[float], list[float]]) -> None:
    with pytest.raises(InvalidArgumentError, match="lists of numbers of one length"):
        kendall(*lists)


def test_variance_shares_by_hand() -> None:
    # f = a + 2 b + 4 a b over a, b in {-1, 1}: variances 1, 4 and 16 of 21.
    a, b = np.meshgrid([-1.0, 1.0], [-1.0, 1.0], indexing="ij")
    found = variance_shares((5 + a + 2 * b + 4 * a * b)[..., None])
    assert found is not None
    assert found[0] == pytest.approx(np.array([[1, 17], [4, 20]]) / 21)
    assert found[1] == pytest.approx(1.0)
    assert variance_shares(np.ones((2, 3, 1))) is None


def test_variance_shares_of_three_axes_add_up() -> None:
    values = np.random.default_rng(1).normal(size=(3, 4, 5))
    found = variance_shares(values[..., None])
    assert found is not None
    # The total share of an axis is everything but the variance of the mean over that axis.
    for axis, (alone, total) in enumerate(found[0]):
        rest = values.mean(axis=axis).var() / values.var()
        assert total == pytest.approx(1 - rest)
        assert alone <= total


def test_what_one_seed_shows_alone_is_no_effect() -> None:
    a, b = np.array([-1.0, 0.0, 1.0])[:, None, None], np.array([-1.0, 1.0])[None, :, None]
    found = variance_shares(3.0 * a + 2.0 * b + 4.0 * a * b + np.zeros((3, 2, 2)))
    assert found is not None
    parts = np.array([9 * 2 / 3, 4.0, 16 * 2 / 3])  # of a, of b, of both
    np.testing.assert_allclose(found[0][:, 0], parts[:2] / parts.sum())
    np.testing.assert_allclose(found[0][:, 1], (parts[:2] + parts[2]) / parts.sum())
    assert found[1] == pytest.approx(1.0)
    noise = stream(0, "test").normal(size=(40, 50, 2))
    effect = np.linspace(-1.0, 1.0, 40)[:, None, None]
    found = variance_shares(effect + noise)
    assert found is not None
    assert found[0][0, 0] == pytest.approx(1.0, abs=0.15)
    assert found[0][1, 1] < 0.15
    assert found[1] == pytest.approx(1 / 4, abs=0.1)


def federation(labels: list[int], splits: list[list[list[int]]]) -> Federation:
    clients = tuple(tuple(np.array(rows, dtype=int) for rows in client) for client in splits)
    features = np.zeros((len(labels), 1), dtype=np.float32)
    return Federation(features, np.array(labels), max(labels) + 1, clients, 0)


MADE = federation([0, 0, 0, 1, 0, 1, 1, 1, 2], [[[0, 1], [4, 5], [6]], [[2, 3], [7, 8], [8]]])
"""Training labels 0 0 | 0 1, validation labels 0 1 | 1 2, test labels 1 | 2."""


def test_label_frequencies_of_all_clients() -> None:
    found = label_frequencies(MADE, own=False, squared=False)
    # Label 2 counts once: shares 3/5, 1/5, 1/5.
    losses = [-math.log(3 / 5), math.log(5), math.log(5), math.log(5)]
    assert found["val_loss"] == pytest.approx(sum(losses) / 4)
    assert found["test_loss"] == pytest.approx(math.log(5))
    assert (found["val_accuracy"], found["test_accuracy"]) == (1 / 4, 0.0)


def test_label_frequencies_of_each_client() -> None:
    found = label_frequencies(MADE, own=True, squared=False)
    # Client 0 knows labels 0 (twice) and 1 (as if once); client 1 has 0, 1 and (as if once) 2.
    losses = [math.log(3 / 2), math.log(3), math.log(3), math.log(3)]
    assert found["val_loss"] == pytest.approx(sum(losses) / 4)


def test_the_mean_label_where_the_loss_is_a_squared_error() -> None:
    found = label_frequencies(MADE, own=False, squared=True)
    wanted = [(label - 1 / 4) ** 2 for label in (0, 1, 1, 2)]
    assert found["val_loss"] == pytest.approx(sum(wanted) / 4)


def test_no_constant_is_better_than_frequencies_on_the_data_they_are_of() -> None:
    same = federation([0, 0, 1, 2], [[[0, 1, 2, 3]] * 3])
    found = label_frequencies(same, own=False, squared=False)["val_loss"]
    grid = [p / 40 for p in range(1, 40)]
    for p, q in itertools.product(grid, grid):
        if p + q < 1:
            loss = -(2 * math.log(p) + math.log(q) + math.log(1 - p - q)) / 4
            assert found <= loss + 1e-12
