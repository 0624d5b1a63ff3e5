"""The models of surrogates and what goes into and comes out of them, without a table."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluation, Fidelity
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored import surrogate_models
from fedhpo_gym.stored.surrogate_rows import (
    LARGEST_LOSS,
    CurveInputs,
    client_shares,
    num_outputs,
    objectives,
    to_metrics,
    to_outputs,
)

SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-5, 1.0, "float", log=True, bins=6),
        Dimension("batch_size", 4, 256, "int", log=True, bins=7),
    )
)
FIDELITIES = SearchSpace(
    (
        Dimension("round", 1, 500, "int", log=True, scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", scope="fidelity"),
    )
)
INPUTS = CurveInputs(SPACE, FIDELITIES, num_clients=5, seeds=(1, 2, 3))


def asked(rate: float, rounds: int = 9) -> dict[str, NDArray[Any]]:
    """Return a query as columns."""
    values = {"learning_rate": 0.1, "batch_size": 4, "round": rounds, "client_sample_rate": rate}
    return {name: np.array([value]) for name, value in values.items()}


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


@pytest.fixture
def ensemble() -> Any:
    return pytest.importorskip("sklearn.ensemble")


@pytest.mark.parametrize("name", ["RandomForestRegressor", "ExtraTreesRegressor"])
@pytest.mark.parametrize("settings", [{"max_depth": 6}, {"max_leaf_nodes": 30}, {}])
def test_a_forest_predicts_what_scikit_learn_predicts(
    name: str, settings: dict[str, int], ensemble: Any
) -> None:
    from fedhpo_gym.building.candidates import forest_of

    rows, outputs = training_data()
    theirs = getattr(ensemble, name)(n_estimators=7, random_state=3, **settings)
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


def test_the_first_trees_of_a_forest_are_a_smaller_forest(ensemble: Any) -> None:
    from fedhpo_gym.building.candidates import forest_of

    rows, outputs = training_data()
    theirs = ensemble.RandomForestRegressor(n_estimators=5, random_state=0)
    theirs.fit(rows, outputs)
    expected = np.mean([tree.predict(rows) for tree in theirs.estimators_[:2]], axis=0)
    np.testing.assert_allclose(forest_of(theirs, 2).predict(rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_forest_cut_at_a_depth_is_one_grown_to_that_depth(depth: int, ensemble: Any) -> None:
    from fedhpo_gym.building.candidates import forest_of

    rows, outputs = training_data(features=1)  # with one feature no split depends on luck
    grown, deep = (
        ensemble.RandomForestRegressor(n_estimators=4, max_depth=d, random_state=0)
        for d in (depth, None)
    )
    grown.fit(rows, outputs)
    deep.fit(rows, outputs)
    ours = forest_of(deep, depth=depth).predict(rows)
    np.testing.assert_allclose(ours, grown.predict(rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("together", [1, 600, 1 << 20])
def test_trees_that_are_walked_together_change_no_bit(
    together: int, ensemble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedhpo_gym.building.candidates import forest_of

    rows, outputs = training_data()
    ours = forest_of(ensemble.RandomForestRegressor(7, random_state=3).fit(rows, outputs))
    monkeypatch.setattr(surrogate_models, "TOGETHER", together)
    found, stored = ours.predict(rows), ours.arrays
    for row, outcome in zip(rows[:20], found, strict=False):
        total = np.zeros(outputs.shape[1])
        for node in stored["roots"].tolist():
            while stored["leaf"][node] < 0:
                right = row[stored["feature"][node]] > stored["threshold"][node]
                node = stored["children"][node, int(right)]
            total += stored["values"][stored["leaf"][node]]
        assert outcome.tolist() == (total / 7).astype(np.float32).tolist()
        assert ours.predict(row[None])[0].tolist() == outcome.tolist()


# -------------------------------------------------------------------------- inputs and outputs


def test_inputs_by_hand_know_no_round() -> None:
    row = INPUTS.rows(asked(0.7, 500), np.array([1]))[0, 0]
    assert row.tolist() == INPUTS.rows(asked(0.7, 1), np.array([1]))[0, 0].tolist()
    named = dict(zip(INPUTS.names, row.tolist(), strict=True))
    assert named["learning_rate"] == pytest.approx(0.6)
    assert named["log_clients"] == pytest.approx(2 * np.log(3) / np.log(5) - 1)
    assert [named[f"seed={seed}"] for seed in (1, 2, 3)] == [0.0, 1.0, 0.0]
    fitted = INPUTS.rows_of_one_seed(row[None, :2], np.array([0.7]), np.array([1]))
    assert fitted[0, 0].tolist() == row.tolist()


def test_a_rate_acts_through_whole_clients_only() -> None:
    rows = [INPUTS.rows(asked(rate), np.array([0])).tolist() for rate in (0.4, 0.59, 0.6)]
    assert rows[0] == rows[1] != rows[2]


def test_few_of_many_clients_are_as_far_apart_as_many_of_few() -> None:
    rates = Dimension("client_sample_rate", 0.005, 0.05, "float", scope="fidelity")
    inputs = CurveInputs(SPACE, SearchSpace((FIDELITIES["round"], rates)), 1000, (1,))
    ends = [inputs.rows(asked(rate), np.array([0]))[0, 0, 2] for rate in (0.005, 0.05)]
    assert ends == [-1.0, 1.0]


SAMPLES = np.array([[10, 5, 1], [0, 3, 8], [7, 0, 2]])


def test_metrics_come_back_from_outputs() -> None:
    values = metrics()
    values[..., 0] = np.minimum(values[..., 0], LARGEST_LOSS / 2)  # what is larger counts as that
    values[2, :, 1, 0] = [4.0, 0.0, 0.0]  # a split in which one client has all of the loss
    weights = np.repeat(client_shares(SAMPLES)[None], len(values), axis=0)
    values *= weights[..., None] > 0  # no samples, no metrics
    best_round = np.array([1, 2, 30, 5, 9, 400, 77])
    outputs = to_outputs(values, best_round, weights)
    assert outputs.shape == (7, num_outputs(3))
    again = to_metrics(outputs, weights)
    np.testing.assert_allclose(again, values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outputs[:, -1], np.log(best_round), rtol=1e-6)


def test_what_a_client_without_samples_reports_does_not_matter() -> None:
    values, weights = metrics(n=2), np.repeat(client_shares(SAMPLES)[None], 2, axis=0)
    values[:, 1, 0] = np.nan  # the second client has no training samples
    outputs = to_outputs(values, np.ones(2, np.int64), weights)
    assert np.isfinite(outputs).all()
    again = to_metrics(outputs, weights)
    assert not again[:, 1, 0].any()


def test_outputs_out_of_range_become_metrics_in_range() -> None:
    weights = np.repeat(client_shares(SAMPLES)[None], 2, axis=0)
    outputs = np.full((2, num_outputs(3)), 3.0, np.float32)
    outputs[1] = -3.0
    values = to_metrics(outputs, weights)
    assert values[0, ..., 1:].max() == 1.0
    assert values[1, ..., 1:].min() == 0.0
    assert values[..., 0].min() >= 0.0
    # No client is predicted a share: all have the loss of the federation.
    np.testing.assert_allclose(values[1, :, 0, 0], np.exp(-3.0) * (SAMPLES[:, 0] > 0), rtol=1e-5)


MANY = 61


def crowd_of(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return metrics and weights of many unequal clients, of whom some lack samples."""
    rng = np.random.default_rng(n)
    samples = rng.integers(0, 30, (MANY, len(SPLITS)))
    samples[::7] = 0
    values = rng.beta(0.8, 0.6, (n, MANY, len(SPLITS), len(METRICS)))
    weights = np.repeat(client_shares(samples)[None], n, axis=0)
    return values * (weights[..., None] > 0), weights


def test_many_clients_keep_their_spread_and_mean_though_made_alike() -> None:
    """Pulled together as by compression, they come back by their order."""
    values, weights = crowd_of(5)
    outputs = to_outputs(values, np.ones(5, np.int64), weights).astype(np.float64)
    clients = slice(3, 3 + 6 * MANY)
    outputs[:, clients] = 0.5 + 1e-3 * outputs[:, clients]
    found = to_metrics(outputs, weights[:1])
    for split, metric in product(range(len(SPLITS)), (1, 2)):
        some = weights[0, :, split] > 0
        told, truth = found[:, some, split, metric], values[:, some, split, metric]
        levels = np.linspace(0, 1, 31)
        between = np.quantile(told, levels, axis=1) - np.quantile(truth, levels, axis=1)
        assert np.abs(between).max() < 0.1
        np.testing.assert_allclose(told.std(axis=1), truth.std(axis=1), atol=0.002)
        assert (np.diff(np.take_along_axis(told, truth.argsort(axis=1), axis=1)) >= 0).all()
        np.testing.assert_allclose(
            (told * weights[0, some, split]).sum(axis=1),
            (truth * weights[0, some, split]).sum(axis=1),
            atol=1e-3,
        )


def test_their_mean_is_the_one_that_is_predicted_of_the_federation() -> None:
    """Who has most samples may come in another place than predicted."""
    values, weights = crowd_of(3)
    outputs = to_outputs(values, np.ones(3, np.int64), weights).astype(np.float64)
    rng = np.random.default_rng(0)
    outputs[:, 3 : 3 + 3 * MANY] = rng.random((3, 3 * MANY))
    found = to_metrics(outputs, weights[:1])
    means = [(each[..., 1] * weights).sum(axis=1) for each in (found, values)]
    np.testing.assert_allclose(*means, atol=5e-3)


def test_many_clients_get_the_same_bits_together_and_alone() -> None:
    values, weights = crowd_of(4)
    outputs = to_outputs(values, np.ones(4, np.int64), weights).astype(np.float64)
    together = to_metrics(outputs, weights[:1])
    alone = [to_metrics(row[None], weights[:1])[0] for row in outputs]
    assert np.array_equal(together, alone)


def test_objectives_are_the_means_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.stored.surrogate_rows.LARGEST_LOSS", 1e3)
    values, weights = metrics(n=4), np.repeat(client_shares(SAMPLES)[None], 4, axis=0)
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
