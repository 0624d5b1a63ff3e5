"""A fitted surrogate answers like a table, everywhere, and vouches for itself."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.building import surrogate_fit
from fedhpo_gym.building.candidates import CANDIDATES
from fedhpo_gym.building.surrogate_data import FittingTable, intervals
from fedhpo_gym.building.surrogate_verdicts import NEARLY, folds_of, summary
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    MissingDependencyError,
    UnknownNameError,
)
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.health import health_on
from fedhpo_gym.stored.surrogate import Surrogate, list_surrogates, open_surrogate, write_surrogate
from fedhpo_gym.stored.surrogate_rows import LARGEST_LOSS, to_metrics, to_outputs
from fedhpo_gym.stored.table import Table
from stored_files import IDENTITY, NAME, ROUNDS, SEEDS, SPACE, arrays_of, stamped

COMMAND = f"fedhpo-gym surrogate {IDENTITY.arguments}"
BETWEEN = {"learning_rate": 0.0317, "batch_size": 23}


def copy_of(folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the card of a copy that a test may damage."""
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(shutil.copytree(folder, target / "tables")))
    return target / "tables" / f"{NAME}.surrogate.json"


@pytest.mark.slow
def test_it_answers_between_the_grid_points(surrogate: Surrogate) -> None:
    found = surrogate.evaluate(BETWEEN, Fidelity(17, 0.5), (2, 1))
    assert found.best.shape == (2, 3, 3, 3)
    assert found.current is None
    assert found.seeds == (2, 1)
    assert found.num_samples.tolist() == surrogate.num_samples[[1, 0]].tolist()
    assert not found.diverged.any()
    assert np.all((found.best_round >= 1) & (found.best_round <= 17))
    assert np.isfinite(found.best).all()
    assert np.all(found.best >= 0)
    assert np.all(found.best[..., 1:] <= 1)


@pytest.mark.slow
def test_seeds_and_clients_stay_apart(surrogate: Surrogate) -> None:
    found = surrogate.evaluate(BETWEEN, Fidelity(17, 0.5), SEEDS)
    loss = found.clients("val", "loss")
    assert len(np.unique(loss)) == loss.size


def test_it_is_near_its_table(surrogate: Surrogate, table: Table) -> None:
    rng = np.random.default_rng(0)
    errors, spread = [], []
    for _ in range(60):
        configuration = SPACE.discretized().sample(rng)
        fidelity = Fidelity(int(rng.choice(ROUNDS)), float(rng.choice(table.rates)))
        ours = surrogate.evaluate(configuration, fidelity, SEEDS)
        truth = table.evaluate(configuration, fidelity, SEEDS)
        errors.append(abs(np.log(ours.mean("val", "loss") / truth.mean("val", "loss"))))
        spread.append(np.log(truth.mean("val", "loss")))
    assert np.mean(errors) < 0.25 * np.std(spread)


def test_it_depends_on_everything_asked(surrogate: Surrogate) -> None:
    def loss(seed: int = 1, rounds: int = 20, rate: float = 1.0, **changes: float) -> float:
        asked = surrogate.evaluate({**BETWEEN, **changes}, Fidelity(rounds, rate), (seed,))
        return asked.mean("val", "loss")

    base = loss()
    others = (
        loss(seed=2),
        loss(rounds=2),
        loss(rate=0.4),
        loss(learning_rate=0.9),
        loss(batch_size=4),
    )
    assert all(other != base for other in others)
    assert loss() == base


def test_a_batch_holds_the_same_answers(surrogate: Surrogate) -> None:
    rng = np.random.default_rng(1)
    configurations = [SPACE.sample(rng) for _ in range(8)]
    columns = {name: np.array([c[name] for c in configurations]) for name in SPACE.names}
    columns |= {"round": rng.integers(1, 41, 8), "client_sample_rate": rng.uniform(1 / 3, 1.0, 8)}
    found = surrogate.look_up(columns, SEEDS)
    for i, configuration in enumerate(configurations):
        fidelity = Fidelity(int(columns["round"][i]), float(columns["client_sample_rate"][i]))
        one = surrogate.evaluate(configuration, fidelity, SEEDS)
        assert found.best[i].tobytes() == one.best.tobytes()
        assert found.best_round[i].tolist() == one.best_round.tolist()
        assert found.diverged[i].tolist() == one.diverged.tolist()


@pytest.mark.parametrize(
    ("configuration", "fidelity", "seeds"),
    [
        ({**BETWEEN, "learning_rate": 2.0}, Fidelity(5, 1.0), (1,)),
        (BETWEEN, Fidelity(41, 1.0), (1,)),
        (BETWEEN, Fidelity(0, 1.0), (1,)),
        (BETWEEN, Fidelity(5, 0.1), (1,)),
        (BETWEEN, Fidelity(5, 1.0), (1, 3)),
        (BETWEEN, Fidelity(5, 1.0), ()),
    ],
)
def test_what_it_cannot_know_is_refused(
    surrogate: Surrogate,
    configuration: dict[str, float],
    fidelity: Fidelity,
    seeds: tuple[int, ...],
) -> None:
    with pytest.raises(InvalidArgumentError):
        surrogate.evaluate(configuration, fidelity, seeds)


def test_its_card_says_where_it_comes_from(surrogate: Surrogate, table: Table) -> None:
    card = surrogate.card
    assert card["table_sha256"] == table.sha256
    assert card["fit_command"] == COMMAND
    assert card["licence"] == table.card["licence"]
    assert {"numpy", "scikit-learn"} <= set(card["software"])
    assert card["created"]
    assert surrogate.sha256 == card["sha256"]


def test_the_smallest_of_nearly_the_best_was_chosen(surrogate: Surrogate) -> None:
    candidates = surrogate.card["comparison"]["candidates"]
    assert set(candidates) == set(CANDIDATES)
    errors = {
        name: result["by_configuration"]["test"]["log_val_loss"]["mae"]
        for name, result in candidates.items()
        if result["small_enough"]
    }
    good = [name for name, error in errors.items() if error <= NEARLY * min(errors.values())]
    smallest = min(good, key=lambda name: candidates[name]["bytes_before_compression"])
    assert surrogate.card["model"]["candidate"] == smallest


@pytest.mark.usefixtures("tables")
def test_it_is_listed() -> None:
    assert NAME in list_surrogates()


@pytest.mark.usefixtures("tables")
def test_a_missing_one_names_the_command() -> None:
    nothing = replace(IDENTITY, name="LR-Nothing-fedopt")
    with pytest.raises(MissingDataError, match=f"'LR-Nothing-fedopt'.*`{COMMAND}`"):
        open_surrogate(nothing)
    with pytest.raises(MissingDataError, match="`fedhpo-gym surrogate ID`"):
        open_surrogate("nonsense")


def test_a_card_of_another_model_is_refused(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = copy_of(tables, tmp_path, monkeypatch)
    content = json.loads(card.read_text(encoding="utf-8"))
    other = "forest" if content["model"]["kind"] == "heads" else "heads"
    content["model"]["kind"] = other
    card.write_bytes(stamped(json.dumps(content).encode()))
    with pytest.raises(DamagedDataError, match=COMMAND):
        open_surrogate(NAME).evaluate(BETWEEN, Fidelity(5, 1.0), (1,))


def test_the_same_model_gives_the_same_bytes(surrogate: Surrogate, tmp_path: Path) -> None:
    written = [
        write_surrogate(tmp_path / name, {"name": NAME}, surrogate._model) for name in ("a", "b")
    ]
    assert written[0].read_bytes() == written[1].read_bytes()
    first, second = (arrays_of(card).read_bytes() for card in written)
    assert first == second
    assert set(written[0].parent.iterdir()) == {written[0], arrays_of(written[0])}


def test_answering_needs_no_library_but_numpy(tables: Path, run_python: Callable[..., str]) -> None:
    code = f"""
import sys
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.surrogate import open_surrogate
found = open_surrogate({NAME!r}).evaluate({BETWEEN!r}, Fidelity(5, 1.0), (1,))
print(found.best.shape, sorted({{"sklearn", "torch", "scipy", "joblib"}} & set(sys.modules)))
"""
    said = run_python(code, {"FEDHPO_GYM_TABLES": str(tables)})
    assert said.strip() == "(1, 3, 3, 3) []"


# -------------------------------------- how surrogates are fitted and how their errors are measured

EVERYTHING = 10**9


def test_rows_are_the_cells_of_the_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedhpo_gym.stored.surrogate_rows.LARGEST_LOSS", 1e3
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
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
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


@pytest.mark.slow
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
