"""LEAF's Synthetic data set against numbers computed with LEAF's own generator."""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.synthetic import SyntheticDraw, generate
from fedhpo_gym.testing import DatasetConformance


class TestSynthetic(DatasetConformance):
    name = "Synthetic"


@pytest.fixture(scope="module")
def leaf() -> SyntheticDraw:
    """LEAF's own settings: 1,000 tasks, 5 classes, 60 dimensions, seed 931231."""
    return generate()


def test_the_numbers_are_leafs(leaf: SyntheticDraw) -> None:
    sizes = np.array([len(y) for y in leaf.y])
    assert sizes[:10].tolist() == [86, 33, 52, 6, 11, 784, 11, 153, 7, 672]
    assert sizes.sum() == 107_553
    assert np.median(sizes) == 25.5
    assert (sizes == 1000).sum() == 30
    assert sizes.std() == pytest.approx(213.2155, abs=1e-4)
    np.testing.assert_allclose(leaf.means, [[-1.34424597]], atol=5e-9)
    q = [0.70168224, 0.17150105, 0.42799314, -1.21195785, -0.60315795]
    np.testing.assert_allclose(leaf.q[0, :, 0], q, atol=5e-9)
    x = [-1.68079789, 2.34699859, -1.35341588, 0.7777447]
    np.testing.assert_allclose(leaf.x[0][0, :4], x, atol=5e-9)
    assert leaf.y[0][:8].tolist() == [4] * 8
    shares = np.bincount(np.concatenate(leaf.y)) / sizes.sum()
    expected = [0.15440759, 0.14390115, 0.21500098, 0.33270109, 0.15398920]
    np.testing.assert_allclose(shares, expected, atol=5e-9)
    largest = np.array([np.bincount(y).max() for y in leaf.y])
    assert np.mean(largest == sizes) == pytest.approx(0.513)
    assert largest.sum() / sizes.sum() == pytest.approx(0.8735, abs=5e-5)


def test_users_are_tasks(leaf: SyntheticDraw) -> None:
    dataset = load_dataset("Synthetic")
    assert dataset.users is not None
    np.testing.assert_array_equal(dataset.features[dataset.users == 5], leaf.x[5])
    np.testing.assert_array_equal(dataset.labels[dataset.users == 999], leaf.y[999])


def test_several_clusters_and_other_sizes() -> None:
    made = generate(num_tasks=30, num_classes=3, num_dim=7, seed=1, prob_clusters=(0.5, 0.5))
    assert made.q.shape == (8, 3, 2)
    assert made.means.shape == (2, 2)
    assert {x.shape[1] for x in made.x} == {7}
    assert set(np.concatenate(made.y).tolist()) <= {0, 1, 2}
    other = generate(num_tasks=30, num_classes=3, num_dim=7, seed=2, prob_clusters=(0.5, 0.5))
    assert not np.array_equal(made.q, other.q)
