"""Ratings: the Netflix Prize's text format, and made-up ratings with a planted structure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.ratings import FEDNETFLIX, make_ratings
from fedhpo_gym.data.synthetic import generate_tasks
from fedhpo_gym.testing import DatasetConformance


class TestMadeRatings(DatasetConformance):
    name = "MadeRatings"


FILES = {
    "combined_data_1.txt": "7:\n30,5,2005-09-06\n10,3,2005-05-13\n9:\n10,1,2005-10-19\n",
    "combined_data_2.txt": "12:\n20,4,2004-01-01\n30,2,2004-01-02\n",
}


@pytest.mark.parametrize("layout", ["combined_data_{}.txt", "training_set/mv_{}.txt", "mv_{}.txt"])
def test_the_files_of_the_prize_are_read(
    layout: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_folder / "netflix"
    for i, text in enumerate(FILES.values()):
        path = folder / layout.format(i)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    made = {"FedNetflix": replace(FEDNETFLIX, num_rows=5)}
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", made)
    dataset = load_dataset("FedNetflix")
    assert dataset.users is not None
    assert dataset.users.tolist() == [0, 0, 1, 2, 2]  # 10, 10, 20, 30, 30
    assert dataset.features[np.arange(5)].ravel().tolist() == [0, 1, 2, 0, 2]  # 7, 9, 12, 7, 12
    assert (dataset.labels + 1).tolist() == [3, 1, 4, 5, 2]


def test_made_ratings_look_like_ratings() -> None:
    made = make_ratings(num_users=2000, num_items=300, mean_ratings=12.0, seed=3)
    pairs = made.user * 300 + made.item
    assert len(np.unique(pairs)) == len(pairs), "nobody rates an item twice"
    sizes = np.bincount(made.user)
    assert sizes.min() >= 1
    assert sizes.mean() == pytest.approx(12.0, rel=0.1)
    popularity = np.bincount(made.item)
    assert popularity[:10].mean() > 5 * popularity[-100:].mean()
    assert set(made.rating.tolist()) == {1, 2, 3, 4, 5}
    assert made.rating.mean() == pytest.approx(3.6, abs=0.35)
    again = make_ratings(num_users=2000, num_items=300, mean_ratings=12.0, seed=3)
    np.testing.assert_array_equal(made.rating, again.rating)


def test_the_planted_rank_can_be_found() -> None:
    """Beside the biases, as many factors as planted explain what they cannot in shuffled stars."""
    made = make_ratings(num_users=120, num_items=80, rank=2, mean_ratings=1e9, noise=0.0)
    assert len(made.user) == 120 * 80, "everybody rates everything"
    stars = np.zeros((120, 80))
    stars[made.user, made.item] = made.rating
    shuffled = np.random.default_rng(0).permutation(stars.ravel()).reshape(stars.shape)

    def explained(matrix: NDArray[np.float64]) -> float:
        rest = matrix - matrix.mean(axis=0) - matrix.mean(axis=1, keepdims=True) + matrix.mean()
        energy = np.linalg.svd(rest, compute_uv=False) ** 2
        return float(energy[:2].sum() / energy.sum())

    assert explained(stars) > 0.75
    assert explained(shuffled) < 0.15


@pytest.mark.parametrize(
    "bad", [{"num_users": 0}, {"num_items": 0}, {"rank": 0}, {"mean_ratings": 0.5}, {"noise": -1.0}]
)
def test_impossible_sizes_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{next(iter(bad))}`"):
        make_ratings(**bad)  # type: ignore[arg-type]


# --------------------- LEAF's Synthetic data set against numbers computed with LEAF's own generator


class TestSynthetic(DatasetConformance):
    name = "Synthetic"


LeafTasks = tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]


@pytest.fixture(scope="module")
def leaf() -> LeafTasks:
    """LEAF's own settings: 1,000 tasks, 5 classes, 60 dimensions, seed 931231."""
    return generate_tasks()


def test_the_numbers_are_leafs(leaf: LeafTasks) -> None:
    sizes = np.array([len(y) for y in leaf[1]])
    assert sizes[:10].tolist() == [86, 33, 52, 6, 11, 784, 11, 153, 7, 672]
    assert sizes.sum() == 107_553
    assert np.median(sizes) == 25.5
    assert (sizes == 1000).sum() == 30
    assert sizes.std() == pytest.approx(213.2155, abs=1e-4)
    x = [-1.68079789, 2.34699859, -1.35341588, 0.7777447]
    np.testing.assert_allclose(leaf[0][0][0, :4], x, atol=5e-9)
    assert leaf[1][0][:8].tolist() == [4] * 8
    shares = np.bincount(np.concatenate(leaf[1])) / sizes.sum()
    expected = [0.15440759, 0.14390115, 0.21500098, 0.33270109, 0.15398920]
    np.testing.assert_allclose(shares, expected, atol=5e-9)
    largest = np.array([np.bincount(y).max() for y in leaf[1]])
    assert np.mean(largest == sizes) == pytest.approx(0.513)
    assert largest.sum() / sizes.sum() == pytest.approx(0.8735, abs=5e-5)


def test_users_are_tasks(leaf: LeafTasks) -> None:
    dataset = load_dataset("Synthetic")
    assert dataset.users is not None
    np.testing.assert_array_equal(dataset.features[dataset.users == 5], leaf[0][5])
    np.testing.assert_array_equal(dataset.labels[dataset.users == 999], leaf[1][999])
