"""The models of surrogates and what goes into and comes out of them, without a table."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.surrogates.forest import Forest
from fedhpo_gym.surrogates.inputs import InputEncoding
from fedhpo_gym.surrogates.model import Compression, OutcomeModel
from fedhpo_gym.surrogates.network import Network
from fedhpo_gym.surrogates.outputs import (
    num_outputs,
    objectives,
    to_metrics,
    to_outputs,
    weights_of,
)

sklearn_ensemble = pytest.importorskip("sklearn.ensemble")

SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-5, 1.0, "float", log=True, bins=6),
        Dimension("batch_size", 4, 256, "int", log=True, bins=7),
    )
)
INPUTS = InputEncoding(SPACE, max_round=500, num_clients=5, seeds=(1, 2, 3))


def training_data(features: int = 4) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Rows on a coarse grid, so that many lie exactly where a tree could split."""
    rng = np.random.default_rng(0)
    rows = rng.integers(-8, 9, size=(400, features)).astype(np.float32) / np.float32(7)
    outputs = np.column_stack([rows.sum(1), np.sin(5 * rows[:, 0]), np.exp(rows[:, -1])])
    return rows, outputs + 0.1 * rng.standard_normal(outputs.shape)


def metrics(seed: int = 0, n: int = 7, clients: int = 3) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.0, 1.0, size=(n, clients, 3, 3)).astype(np.float32)
    values[..., 0] = np.exp(rng.normal(0.0, 3.0, size=(n, clients, 3)))
    return values


# ------------------------------------------------------------------------------------- forests


@pytest.mark.parametrize("name", ["RandomForestRegressor", "ExtraTreesRegressor"])
@pytest.mark.parametrize("settings", [{"max_depth": 6}, {"max_leaf_nodes": 30}, {}])
def test_a_forest_predicts_what_scikit_learn_predicts(name: str, settings: dict[str, int]) -> None:
    from fedhpo_gym.fitting.candidates import forest_of

    rows, outputs = training_data()
    theirs = getattr(sklearn_ensemble, name)(n_estimators=7, random_state=3, **settings)
    theirs.fit(rows, outputs)
    asked = [rows, np.random.default_rng(1).uniform(-2, 2, (500, 4)).astype(np.float32)]
    for tree in theirs.estimators_:  # rows on the thresholds, and one float32 to either side
        split = tree.tree_.threshold[tree.tree_.feature >= 0].astype(np.float32)
        for value in (
            split,
            np.nextafter(split, np.float32(9)),
            np.nextafter(split, np.float32(-9)),
        ):
            asked.append(np.repeat(value[:, None], 4, axis=1))
    queries = np.concatenate(asked)
    np.testing.assert_allclose(
        forest_of(theirs).predict(queries), theirs.predict(queries), rtol=1e-6, atol=1e-6
    )


def test_the_first_trees_of_a_forest_are_a_smaller_forest() -> None:
    from fedhpo_gym.fitting.candidates import forest_of

    rows, outputs = training_data()
    theirs = sklearn_ensemble.RandomForestRegressor(n_estimators=5, random_state=0)
    theirs.fit(rows, outputs)
    expected = np.mean([tree.predict(rows) for tree in theirs.estimators_[:2]], axis=0)
    np.testing.assert_allclose(forest_of(theirs, 2).predict(rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_forest_cut_at_a_depth_is_one_grown_to_that_depth(depth: int) -> None:
    from fedhpo_gym.fitting.candidates import forest_of

    rows, outputs = training_data(features=1)  # with one feature no split depends on luck
    grown, deep = (
        sklearn_ensemble.RandomForestRegressor(n_estimators=4, max_depth=d, random_state=0)
        for d in (depth, None)
    )
    grown.fit(rows, outputs)
    deep.fit(rows, outputs)
    ours = forest_of(deep, depth=depth).predict(rows)
    np.testing.assert_allclose(ours, grown.predict(rows), rtol=1e-5, atol=1e-6)


def stump() -> dict[str, NDArray[Any]]:
    return {
        "roots": np.array([0]),
        "feature": np.array([0, 0, 0]),
        "threshold": np.array([0.5, 0.0, 0.0], np.float32),
        "children": np.array([[1, 2], [1, 1], [2, 2]]),
        "leaf": np.array([-1, 0, 1]),
        "values": np.array([[3.0], [8.0]], np.float32),
    }


def test_a_row_on_the_threshold_goes_left() -> None:
    rows = np.array([[0.4], [0.5], [0.6]], np.float32)
    assert Forest(stump()).predict(rows).tolist() == [[3.0], [3.0], [8.0]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("children", np.array([[0, 2], [1, 1], [2, 2]])),
        ("children", np.array([[1, 3], [1, 1], [2, 2]])),
        ("leaf", np.array([-1, 0, 2])),
        ("roots", np.array([-1])),
        ("threshold", np.zeros(2, np.float32)),
    ],
)
def test_a_forest_whose_arrays_do_not_fit_is_refused(name: str, value: NDArray[Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Forest({**stump(), name: value})


def test_a_forest_without_an_array_is_refused() -> None:
    arrays = stump()
    del arrays["leaf"]
    with pytest.raises(InvalidArgumentError, match="leaf"):
        Forest(arrays)


# ------------------------------------------------------------------------------------ networks


def test_a_network_predicts_what_scikit_learn_predicts() -> None:
    from sklearn.neural_network import MLPRegressor

    rows, outputs = training_data()
    theirs = MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five iterations are no fit, and none is needed
        theirs.fit(rows, outputs)
    arrays = {f"weight_{i}": w for i, w in enumerate(theirs.coefs_)}
    arrays |= {f"bias_{i}": b for i, b in enumerate(theirs.intercepts_)}
    np.testing.assert_allclose(
        Network(arrays).predict(rows), theirs.predict(rows), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"weight_0": np.zeros((2, 3))},
        {"weight_0": np.zeros((2, 3)), "bias_0": np.zeros(4)},
        {
            "weight_0": np.zeros((2, 3)),
            "bias_0": np.zeros(3),
            "weight_1": np.zeros((4, 1)),
            "bias_1": np.zeros(1),
        },
    ],
)
def test_a_network_whose_layers_do_not_fit_is_refused(arrays: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(InvalidArgumentError):
        Network(arrays)


def test_training_a_network_lowers_its_error_and_repeats_exactly() -> None:
    from fedhpo_gym.fitting.network import train_network

    rows, outputs = training_data()
    targets = ((outputs - outputs.mean(0)) / outputs.std(0)).astype(np.float32)
    fitted = [train_network(rows, targets, steps=n, batch=64, widths=(32,)) for n in (1, 300, 300)]
    error = [float(np.abs(model.predict(rows) - targets).mean()) for model in fitted]
    assert error[1] < 0.5 * error[0]
    assert fitted[1].predict(rows).tobytes() == fitted[2].predict(rows).tobytes()


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    from fedhpo_gym.fitting.network import _gradients

    rng = np.random.default_rng(0)
    parameters = [rng.normal(size=s) for s in ((3, 5), (5,), (5, 4), (4,), (4, 2), (2,))]
    rows, targets = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))

    def loss() -> float:
        hidden = np.maximum(rows @ parameters[0] + parameters[1], 0)
        hidden = np.maximum(hidden @ parameters[2] + parameters[3], 0)
        size = np.abs(hidden @ parameters[4] + parameters[5] - targets)
        return float(np.where(size < 1, size**2 / 2, size - 0.5).sum() / len(rows))

    for parameter, gradient in zip(parameters, _gradients(parameters, rows, targets), strict=True):
        for index in np.ndindex(parameter.shape):
            kept = parameter[index]
            parameter[index] = kept + 1e-6
            above = loss()
            parameter[index] = kept - 1e-6
            slope = (above - loss()) / 2e-6
            parameter[index] = kept
            assert gradient[index] == pytest.approx(slope, abs=1e-5)


def test_a_model_never_leaves_the_range_of_its_table() -> None:
    scales = {"mean": [1.0], "scale": [2.0], "low": [4.0], "high": [15.0]}
    model = OutcomeModel(Forest(stump()), {name: np.array(value) for name, value in scales.items()})
    rows = np.array([[0.0], [1.0]], np.float32)
    assert model.predict(rows).tolist() == [[7.0], [15.0]]
    again = OutcomeModel.from_arrays("forest", model.arrays)
    assert again.predict(rows).tolist() == [[7.0], [15.0]]


def test_an_unknown_kind_of_model_is_named() -> None:
    with pytest.raises(UnknownNameError, match="forst"):
        OutcomeModel.from_arrays("forst", {})


# -------------------------------------------------------------------------- inputs and outputs


def test_one_row_is_the_row_of_a_batch() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        configuration = SPACE.sample(rng)
        fidelity = Fidelity(int(rng.integers(1, 501)), float(rng.uniform(0.2, 1.0)))
        where = rng.permutation(3)[:2]
        many = INPUTS.many(
            np.repeat(SPACE.encode(configuration)[None], 2, axis=0),
            [fidelity.round] * 2,
            [fidelity.client_sample_rate] * 2,
            where,
        )
        np.testing.assert_allclose(
            INPUTS.one(configuration, fidelity, where), many, rtol=1e-6, atol=1e-7
        )


def test_inputs_by_hand() -> None:
    row = INPUTS.one({"learning_rate": 0.1, "batch_size": 4}, Fidelity(500, 0.7), np.array([1]))[0]
    named = dict(zip(INPUTS.names, row.tolist(), strict=True))
    assert named["learning_rate"] == pytest.approx(0.6)
    assert named["log_round"] == pytest.approx(1.0)
    assert named["client_share"] == pytest.approx(0.2)  # 3 of 5 clients
    assert [named[f"seed={seed}"] for seed in (1, 2, 3)] == [0.0, 1.0, 0.0]


def test_a_rate_acts_through_whole_clients_only() -> None:
    configuration = {"learning_rate": 0.1, "batch_size": 4}
    rows = [
        INPUTS.one(configuration, Fidelity(9, rate), np.array([0])).tolist()
        for rate in (0.4, 0.59, 0.6)
    ]
    assert rows[0] == rows[1] != rows[2]


SAMPLES = np.array([[10, 5, 1], [0, 3, 8], [7, 0, 2]])


def test_metrics_come_back_from_outputs() -> None:
    values = metrics()
    values[2, :, 1, 0] = [4.0, 0.0, 0.0]  # a split in which one client has all of the loss
    weights = np.repeat(weights_of(SAMPLES)[None], len(values), axis=0)
    values *= weights[..., None] > 0  # no samples, no metrics
    best_round = np.array([1, 2, 30, 5, 9, 400, 77])
    outputs = to_outputs(values, best_round, weights)
    assert outputs.shape == (7, num_outputs(3))
    again, rounds = to_metrics(outputs, weights, np.full(7, 500))
    np.testing.assert_allclose(again, values, rtol=1e-4, atol=1e-6)
    assert rounds.tolist() == best_round.tolist()


def test_what_a_client_without_samples_reports_does_not_matter() -> None:
    values, weights = metrics(n=2), np.repeat(weights_of(SAMPLES)[None], 2, axis=0)
    values[:, 1, 0] = np.nan  # the second client has no training samples
    outputs = to_outputs(values, np.ones(2, np.int64), weights)
    assert np.isfinite(outputs).all()
    again, _ = to_metrics(outputs, weights, np.ones(2, np.int64))
    assert not again[:, 1, 0].any()


def test_outputs_out_of_range_become_metrics_in_range() -> None:
    weights = np.repeat(weights_of(SAMPLES)[None], 2, axis=0)
    outputs = np.full((2, num_outputs(3)), 3.0, np.float32)
    outputs[1] = -3.0
    values, rounds = to_metrics(outputs, weights, np.array([7, 7]))
    assert rounds.tolist() == [7, 1]
    assert values[0, ..., 1:].max() == 1.0
    assert values[1, ..., 1:].min() == 0.0
    assert values[..., 0].min() >= 0.0
    # No client is predicted a share: all have the loss of the federation.
    np.testing.assert_allclose(values[1, :, 0, 0], np.exp(-3.0) * (SAMPLES[:, 0] > 0), rtol=1e-5)


def test_objectives_are_the_means_of_the_evaluation() -> None:
    values, weights = metrics(n=4), np.repeat(weights_of(SAMPLES)[None], 4, axis=0)
    outputs = to_outputs(values, np.ones(4, np.int64), weights)
    found = objectives(outputs, weights)
    for row in range(4):
        evaluation = Evaluation(
            best=values[row : row + 1],
            current=None,
            num_samples=SAMPLES[None],
            best_round=np.ones(1, np.int64),
            diverged=np.zeros(1, np.bool_),
            seeds=(1,),
            fidelity=Fidelity(1, 1.0),
        )
        assert found[row, 0] == pytest.approx(evaluation.mean("val", "accuracy"), rel=1e-5)
        assert np.exp(found[row, 1]) == pytest.approx(evaluation.mean("val", "loss"), rel=1e-5)


@pytest.mark.parametrize("compressed", [False, True])
def test_groups_of_rows_get_the_same_bits_together_and_alone(compressed: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = (9, 64, 11)
    layers: dict[str, NDArray[Any]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers[f"weight_{layer}"] = rng.normal(size=(inputs, outputs)).astype(np.float16)
        layers[f"bias_{layer}"] = rng.normal(size=outputs).astype(np.float16)
    count = 3 + 45 + 1 if compressed else sizes[-1]
    scales = {"mean": rng.normal(size=count), "scale": rng.uniform(1, 2, count)}
    scales |= {"low": np.full(count, -50.0), "high": np.full(count, 50.0)}
    compression = Compression(rng.normal(size=(sizes[-1] - 4, 45))) if compressed else None
    model = OutcomeModel(Network(layers), scales, compression)
    groups = rng.normal(size=(300, 3, 9)).astype(np.float32)
    alone = np.stack([model.predict(group) for group in groups])
    assert alone.shape == (300, 3, count)
    np.testing.assert_array_equal(model.predict(groups), alone)
