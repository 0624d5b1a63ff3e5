"""How surrogates are fitted and how their errors are measured."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.building import surrogate_fit
from fedhpo_gym.building.surrogate_sources import FittingTable, intervals
from fedhpo_gym.building.validation import folds_of, summary
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError, UnknownNameError
from fedhpo_gym.stored.health import health_on
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.surrogate_outputs import LARGEST_LOSS, to_metrics, to_outputs
from fedhpo_gym.stored.table import Table
from stored_files import NAME, ROUNDS, arrays_of

EVERYTHING = 10**9


def test_rows_are_the_cells_of_the_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedhpo_gym.stored.surrogate_outputs.LARGEST_LOSS", 1e3
    )  # its losses are large
    rows = FittingTable(table).rows(EVERYTHING, np.random.default_rng(0))
    assert len(rows) == 15 * 3 * 2
    # Axes: learning rate, batch size, client sample rate, seed.
    at = np.ravel_multi_index((3, 1, 2, 1), (5, 3, 3, 2))
    weights = np.repeat(rows.weights[at : at + 1], len(ROUNDS), axis=0)
    found = to_metrics(rows.outputs[at, :, :-1], weights)
    truth = table.values("best", "val", "loss")[:, 3, 1, 2, 1]
    np.testing.assert_allclose(found[:, :, 1, 0], truth, rtol=1e-4)
    np.testing.assert_allclose(np.exp(rows.outputs[at, :, -2]), ROUNDS, rtol=1e-6)
    assert rows.configuration[at] == 3 * 3 + 1
    columns = intervals(table.space)
    expected = columns.encode({"learning_rate": 0.1, "batch_size": 16})
    np.testing.assert_allclose(rows.inputs[at, 0, :2], expected, rtol=1e-6, atol=1e-7)
    assert rows.inputs[at, 0, 2:].tolist() == [1.0, 0.0, 1.0]  # all clients, the second seed
    assert rows.ranking[at] == 1
    assert rows.ranking[at - 2] == -1  # a lower rate is not ranked
    assert rows.outputs[..., -1].max() == 0.0  # nothing diverged


def test_a_draw_is_part_of_the_table_without_repetition(table: Table) -> None:
    rows = FittingTable(table).rows(50, np.random.default_rng(0))
    assert len(rows) == 50
    assert len(np.unique(rows.inputs[:, 0], axis=0)) == 50


def test_a_fold_keeps_a_configuration_together() -> None:
    groups = np.repeat(np.arange(40), 6)
    fold = folds_of(groups, np.random.default_rng(0))
    assert all(len(set(fold[groups == group])) == 1 for group in range(40))
    assert np.bincount(fold).tolist() == [24] * 10
    assert fold[::6].tolist() != [group % 10 for group in range(40)]  # shuffled


def test_the_spread_of_seeds_by_hand(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"accuracy": np.array([[0.1, 0.2, 0.6]]), "loss": np.exp([[0.0, 3.0, 9.0]])}
    monkeypatch.setattr(table, "seeds", (1, 2, 3))
    monkeypatch.setattr(table, "objective", lambda _split, metric: numbers[metric])
    # From the mean of the other two: 0.3, 0.15, 0.45 and 6, 1.5, 7.5.
    expected = {"val_accuracy": 0.3, "log_val_loss": 5.0}
    assert FittingTable(table).seed_spread == pytest.approx(expected, rel=1e-3)


def test_a_summary_by_hand() -> None:
    errors = np.column_stack([np.arange(101.0), np.full(101, 2.0)])
    found = summary(errors, {"val_accuracy": 25.0, "log_val_loss": 0.0})
    assert found["val_accuracy"] == {
        "mae": 50.0,
        "median": 50.0,
        "p90": 90.0,
        "p99": 99.0,
        "max": 100.0,
        "mae_per_seed_spread": 2.0,
    }
    assert "mae_per_seed_spread" not in found["log_val_loss"]


def test_a_fitted_surrogate_states_its_health(surrogate: Surrogate) -> None:
    assert not health_on(surrogate, "fit it again")["lattice"]["exact"]


@pytest.mark.usefixtures("tables")
def test_without_scikit_learn_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> object:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name, name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingDependencyError, match=r"\[surrogate\]"):
        surrogate_fit.fit_surrogate(NAME, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tables")
def test_an_unknown_candidate_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="network"):
        surrogate_fit.fit_surrogate(NAME, tmp_path, candidate="netwrok")


@pytest.mark.usefixtures("tables")
def test_when_nothing_is_small_enough_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = surrogate_fit.CANDIDATES["compact_forest"]
    monkeypatch.setattr(surrogate_fit, "CANDIDATES", {"compact_forest": forest})
    monkeypatch.setattr(surrogate_fit, "MAX_BYTES", 10)
    with pytest.raises(InvalidArgumentError, match="10 bytes"):
        surrogate_fit.fit_surrogate(NAME, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tables")
def test_a_fit_repeats_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forest = surrogate_fit.CANDIDATES["compact_forest"]
    monkeypatch.setattr(surrogate_fit, "CANDIDATES", {"compact_forest": forest})
    cards = [surrogate_fit.fit_surrogate(NAME, tmp_path / name, keep=True) for name in ("a", "b")]
    first, second = (arrays_of(card).read_bytes() for card in cards)
    assert first == second


@pytest.mark.usefixtures("tables")
def test_one_candidate_is_fitted_alone(tmp_path: Path, table: Table) -> None:
    card = surrogate_fit.fit_surrogate(NAME, tmp_path, candidate="compact_forest", keep=True)
    content = Surrogate(card).card
    assert set(content["comparison"]["candidates"]) == {"compact_forest"}
    assert content["model"]["candidate"] == "compact_forest"
    courses = len(FittingTable(table).rows(EVERYTHING, np.random.default_rng(0)))
    assert content["comparison"]["rows"] == courses
    assert content["fit_command"].endswith(" --candidate compact_forest")


@pytest.mark.parametrize(("loss", "expected"), [(1e30, LARGEST_LOSS), (2.0, 2.0)])
def test_losses_without_measure_count_as_the_largest(loss: float, expected: float) -> None:
    metrics = np.full((1, 2, 3, 3), 0.5)
    metrics[..., 0] = loss
    weights = np.full((1, 2, 3), 0.5)
    outputs = to_outputs(metrics, np.array([4]), weights)
    np.testing.assert_allclose(np.exp(outputs[0, :3]), expected, rtol=1e-5)
    found = to_metrics(outputs, weights)
    np.testing.assert_allclose(found[..., 0], expected, rtol=1e-5)
