"""The surrogate of a search space: one model of all tasks, and how it is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from fedhpo_gym.building import meta_surrogate
from fedhpo_gym.building.meta_surrogate import FittedSurrogate, fit_meta_surrogate
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.stored.meta_data import KNOTS, MetaSurrogate

TASKS, COUNT, SHARED, NOISE = 3, 120, 80, 2
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two bowls at different places and of different scales, of which few diverge, and noise."""
    rng = np.random.default_rng(0)
    features = rng.random((TASKS, COUNT, 3))
    features[:, :SHARED] = features[0, :SHARED]
    bowl = [((features[task, :, :2] - 0.3 - 0.4 * task) ** 2).sum(axis=1) for task in range(TASKS)]
    values = np.exp(np.repeat(np.stack(bowl)[..., None], 6, axis=2))
    values[1] *= 100.0
    values[1, values[1, :, 0] > np.quantile(values[1, :, 0], 0.95)] = LARGEST
    values[NOISE] = rng.random((COUNT, 6))
    return features, values


@pytest.fixture(scope="module")
def fitted(table: Any) -> FittedSurrogate:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_surrogate, "NETWORKS", 2)
        patch.setattr(meta_surrogate, "WIDTHS", (32, 32))
        patch.setattr(meta_surrogate, "FEWEST_STEPS", 300)
        features, values = table
        return fit_meta_surrogate(features, values, SHARED)


def small() -> Arrays:
    """Return a surrogate of 2 tasks, with 3 features, 5 hidden values, and 2 objectives, twice."""
    rng = np.random.default_rng(0)
    shapes = {"task_weight": (2, 2, 5), "weight_0": (2, 3, 5), "bias_0": (2, 5)}
    shapes |= {"weight_1": (2, 5, 2), "bias_1": (2, 2)}
    arrays: Arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {**arrays, "quantiles": np.sort(rng.random((2, 2, KNOTS)))}


def test_it_learns_tasks_of_any_scale_but_no_noise(table: Any, fitted: FittedSurrogate) -> None:
    (features, values), model = table, MetaSurrogate(fitted.arrays)
    for task in range(NOISE):
        usual = values[task, :, 0] < LARGEST
        claimed = model.predict(task, features[task, usual])[:, 0]
        assert np.abs(np.log(claimed / values[task, usual, 0])).mean() < 0.02
        assert np.argmin(claimed) in np.argsort(values[task, usual, 0])[:5]
    assert min(fitted.tau[:NOISE]) > 0.85
    assert abs(fitted.tau[NOISE]) < 0.25


def test_tau_is_that_of_models_that_never_saw_a_configuration(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_surrogate, "FEWEST_STEPS", 1)
    monkeypatch.setattr(meta_surrogate, "EPOCHS", 1)
    features, values = table
    seen: list[tuple[Any, MetaSurrogate]] = []
    real = meta_surrogate._fit_arrays

    def watched(rows: Any, measured: Any, seed: int) -> Arrays:
        arrays = real(rows, measured, seed)
        seen.append((rows, MetaSurrogate(arrays)))
        return arrays

    monkeypatch.setattr(meta_surrogate, "_fit_arrays", watched)
    one, again, other = (fit_meta_surrogate(features, values, SHARED, seed) for seed in (1, 1, 2))
    assert one.tau == again.tau != other.tau
    assert all((array == again.arrays[name]).all() for name, array in one.arrays.items())
    claimed = np.full((TASKS, COUNT), np.nan)
    for rows, model in seen[:5]:
        missing = ~(features[:, :, None] == rows[:, None]).all(axis=-1).any(axis=-1)
        assert (missing[:, :SHARED] == missing[0, :SHARED]).all()
        for task, away in enumerate(missing):
            claimed[task, away] = model.predict(task, features[task, away])[:, 0]
    expected = [kendalltau(values[task, :, 0], claimed[task])[0] for task in range(TASKS)]
    assert one.tau == pytest.approx(expected)
    assert [len(rows[0]) for rows, _ in seen[:6]] == [*(4 * COUNT // 5,) * 5, COUNT]


def test_a_row_has_its_bits_alone_in_a_batch_and_in_any_order(fitted: FittedSurrogate) -> None:
    model, rng = MetaSurrogate(fitted.arrays), np.random.default_rng(1)
    tasks, rows = rng.integers(TASKS, size=2500), rng.random((2500, 3))
    together = model.predict(tasks, rows)
    assert np.isfinite(together).all()
    order = rng.permutation(len(rows))
    np.testing.assert_array_equal(model.predict(tasks[order], rows[order]), together[order])
    for place in (0, 1, len(rows) - 1):
        alone = model.predict(int(tasks[place]), rows[place : place + 1])
        np.testing.assert_array_equal(alone[0], together[place])
    best = np.sort(model.predict(0, rows)[:, 0])[:100]
    assert len(np.unique(best)) == 100  # no two configurations near the optimum are alike


def test_a_network_by_hand() -> None:
    ramp = 1.0 / np.linspace(1.0, 0.5, KNOTS) - 1.0
    arrays: Arrays = {
        "task_weight": np.array([[[0.5], [0.0]]]),
        "weight_0": np.array([[[1.0], [0.0], [0.0]]]),
        "bias_0": np.array([[0.25]]),
        "weight_1": np.array([[[2.0]]]),
        "bias_1": np.array([[-1.0]]),
        "quantiles": np.stack([ramp, np.full(KNOTS, 7.0)])[:, None],
    }
    found = MetaSurrogate(arrays).predict(np.array([0, 1]), np.array([[0.5, 0.3, 0.9]] * 2))
    score = 2.0 * 0.75 * (1.0 + 0.75 / np.sqrt(1.0 + 0.75**2)) / 2.0 - 1.0
    assert found[:, 0] == pytest.approx([1.0 / (1.0 - (score + 2.5) / 10.0) - 1.0, 7.0], abs=1e-3)


@pytest.mark.parametrize("name", sorted(small()))
def test_damaged_arrays_are_refused(name: str) -> None:
    arrays = small()
    MetaSurrogate(arrays)
    array = arrays.pop(name)
    wrong = [array[0], array[:1], array[..., 1:], array * np.nan, array.astype(str)]
    wrong += [array[..., ::-1], array - 1.0] if name == "quantiles" else []
    for one in wrong:
        with pytest.raises(InvalidArgumentError):
            MetaSurrogate({**arrays, name: one})
    with pytest.raises(InvalidArgumentError, match="must have"):
        MetaSurrogate(arrays)


def test_wrong_questions_and_tables_are_refused(table: Any) -> None:
    model = MetaSurrogate(small())
    for tasks in (2, -1, 0.0, [0], [[0, 1]]):
        with pytest.raises(InvalidArgumentError, match="tasks"):
            model.predict(tasks, np.zeros((2, 3)))
    for rows in (np.zeros((2, 4)), np.zeros(3), np.full((1, 3), np.nan)):
        with pytest.raises(InvalidArgumentError, match="features"):
            model.predict(0, rows)
    features, values = table
    tables = [(one, SHARED) for one in (values[0], values[..., :5], values * np.inf, -values)]
    for wrong, shared in (*tables, (values, COUNT + 1)):
        with pytest.raises(InvalidArgumentError, match="shared"):
            fit_meta_surrogate(features, wrong, shared)
