"""The meta-model finds where tasks are, and its networks fit what they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError

torch = pytest.importorskip("torch")
pytest.importorskip("gpytorch")

from fedhpo_gym.building.meta_model import sampled_networks, task_features  # noqa: E402

SMALL: dict[str, Any] = {
    "widths": (16,), "samples": 4, "chains": 2, "burn_in": 2000, "keep_every": 100, "batch": 32,
}  # fmt: skip


def _line(count: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points, and noisy values of deviation .1; beside them, what is the same everywhere."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.5, 1.5, (count, 1))
    noisy = np.sin(2.0 * x) + 0.1 * rng.standard_normal((count, 1))
    return x, np.concatenate([noisy, np.zeros_like(x)], axis=1)


def _answers(found: dict[str, NDArray[np.float32]], x: NDArray[np.float64]) -> NDArray[np.float64]:
    hidden = np.tanh(x @ found["weight_0"] + found["bias_0"][:, None])
    return np.asarray(hidden @ found["weight_1"] + found["bias_1"][:, None])


@pytest.mark.slow
def test_tasks_lie_as_what_makes_them_different() -> None:
    rng = np.random.default_rng(0)
    causes, parts = rng.uniform(-1, 1, (14, 2)), rng.standard_normal((2, 40))
    values = causes @ parts + 0.05 * rng.standard_normal((14, 40))
    found = task_features(values, 2, steps=200)

    def apart(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = np.sqrt(((rows[:, None] - rows) ** 2).sum(axis=2))
        return np.asarray(distance[np.triu_indices(len(rows), 1)])

    # A task is standardised, so causes count by their direction.
    expected = apart(causes / np.linalg.norm(causes, axis=1, keepdims=True))
    assert np.corrcoef(apart(found.mean), expected)[0, 1] > 0.8
    assert (found.deviation > 0).all()


@pytest.mark.slow
def test_networks_fit_values_and_their_noise() -> None:
    x, targets = _line()
    found = sampled_networks(x, targets, **SMALL, least_noise=0.05)
    mean = _answers(found, x)[..., 0].mean(axis=0)
    assert np.sqrt(((mean - np.sin(2.0 * x[:, 0])) ** 2).mean()) < 0.08
    deviation = np.sqrt(np.exp(found["log_variance"][:, 0]) + 0.05**2)
    assert deviation == pytest.approx(0.1, rel=0.4)
    assert len({one.tobytes() for one in found["weight_0"]}) == 4


@pytest.mark.slow
def test_what_is_known_without_error_outweighs_nothing() -> None:
    """Its precision grew without end, and with it the steps of all weights."""
    x, targets = _line()
    found = sampled_networks(x, targets, **{**SMALL, "least_noise": 0.1})
    for answers in _answers(found, x)[..., 0]:
        assert np.sqrt(((answers - np.sin(2.0 * x[:, 0])) ** 2).mean()) < 0.1


def test_a_seed_is_all_that_draws_depend_on() -> None:
    x, targets = _line(50)
    own = {**SMALL, "burn_in": 50}
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = sampled_networks(x, targets, seed=1, **own)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(4)
    for name, array in sampled_networks(x, targets, seed=1, **own).items():
        np.testing.assert_array_equal(array, first[name])
    other = sampled_networks(x, targets, seed=2, **own)["weight_0"]
    assert not np.array_equal(other, first["weight_0"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": 3}, "a multiple of `chains`"),
        ({"activation": "relu"}, "tanh"),
        ({"widths": (0,)}, "must be at least 1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], words: str) -> None:
    x, targets = _line(20)
    with pytest.raises((InvalidArgumentError, UnknownNameError), match=words):
        sampled_networks(x, targets, **{**SMALL, **change})
    with pytest.raises(InvalidArgumentError, match="`dimensions` must be from 1 to 4"):
        task_features(np.ones((5, 8)) * np.arange(8), 5)
