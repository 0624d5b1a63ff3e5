"""Families of Profet: a formula, and files of its authors, read and never run."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from profet_families import SPACES, read_profet_json
from profet_tasks import forrester_parameters, forrester_values

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.profet import forrester
from fedhpo_gym.profet.model import LINKS


def test_forrester_by_hand() -> None:
    found = forrester_values(np.array([[0.5, 1.0], [1.0, 0.0]]), np.array([0.0, 1.0]))
    expected = [[4 * np.sin(-4), 2.25 * np.sin(-3)], [4 * np.sin(-4), np.sin(-4)]]
    np.testing.assert_allclose(found, expected)


def test_a_family_has_the_functions_of_the_study() -> None:
    found, highest = forrester(4, seed=2, highest=(12.0, 24.0)), (12.0, 24.0)
    expected = forrester_values(forrester_parameters(4, 2, highest), found.x[:, 0])
    np.testing.assert_array_equal(found.values, expected)


def test_more_functions_begin_with_the_same_ones() -> None:
    few, many = forrester(3, seed=4), forrester(5, seed=4)
    np.testing.assert_array_equal(few.values, many.values[:3])
    assert few.x.shape == (100, 1)
    np.testing.assert_array_equal(np.sort((few.x[:64, 0] * 64).astype(int)), np.arange(64))


@pytest.mark.parametrize("link", LINKS)
def test_a_link_comes_back(link: str) -> None:
    there, back = LINKS[link]
    values = np.array([0.01, 0.3, 0.99])
    np.testing.assert_allclose(back(there(values)), values)


def own_json(**changed: object) -> str:
    """Return Profet's layout of two tasks of three points."""
    held = {"X": [[0.0, 0.5], [1.0, 0.5], [0.2, 0.1]], "Y": [[0.1, 0.2, 0.3]] * 2}
    return json.dumps({**held, "C": [[1.0, 2.0, 3.0]] * 2, **changed})


def test_a_file_of_profet(tmp_path: Path) -> None:
    path = tmp_path / "data_sobol_svm.json"
    path.write_text(own_json())
    found = read_profet_json(path, "svm")
    assert (found.space, found.link, found.tasks) == (SPACES["svm"], "logit", ("0", "1"))
    assert found.costs is not None
    assert found.costs[1, 2] == 3.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"Y": [[0.1, 0.2]] * 2}, r"`values` must be .* shape \(2, 3\)"),
        ({"Y": [[0.1, 0.2, 1.3]] * 2}, r"`values` must be .* in \[0.0, 1.0\]"),
        ({"X": [[0.0, 0.5], [2.0, 0.5], [0.2, 0.1]]}, r"`x` must be .* in \[0.0, 1.0\]"),
        ({"C": [[1.0, 2.0, 0.0]] * 2}, "`costs` must be"),
    ],
)
def test_sizes_and_ranges_are_checked(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    path = tmp_path / "data_sobol_svm.json"
    path.write_text(own_json(**changed))
    with pytest.raises(InvalidArgumentError, match=words):
        read_profet_json(path, "svm")


def test_samples_that_are_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sample_objective_0.pkl"
    path.write_bytes(pickle.dumps({"X": 1}))
    with pytest.raises(InvalidArgumentError, match="pickles, which run code"):
        read_profet_json(path, "svm")
