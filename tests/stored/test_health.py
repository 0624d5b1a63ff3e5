"""Health of stored numbers: against exhaustive search, on the cards of the package, and written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems_table import CSV, PAGE, csv_text, page

from fedhpo_gym.core.archive import DIGEST_ENTRY, add_to_card
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER, ENV_VAR
from fedhpo_gym.stored.health import (
    HEALTH,
    KINDS,
    LABELS,
    agree,
    edges,
    faults,
    health_of,
    health_on,
    open_stored,
    write_health,
)
from fedhpo_gym.stored.lattice import StoredNumbers, landscape_of
from fedhpo_gym.stored.surrogate import open_surrogate
from fedhpo_gym.stored.table import FORMAT, Table
from fedhpo_gym.tasks import task_of
from stored_files import RATES, ROUNDS, SEEDS, SPACE, write_made_up_table

LABEL_LOSSES = {"val_loss": 2.0, "test_loss": 2.0, "val_accuracy": 0.5, "test_accuracy": 0.5}


@pytest.fixture
def card(tmp_path: Path) -> Path:
    return write_made_up_table(tmp_path)


def diverging(card: Path) -> Table:
    """Return the table with two courses that diverged, at rounds 1 and 10."""
    table = Table(card)
    diverged_at = table.codes("diverged_at").copy()
    diverged_at[4, 0, 2, 1] = 1
    diverged_at[0, 0, 0, 0] = 10
    table.__dict__["_packed"] = {**table._packed, "diverged_at": diverged_at}
    return table


def everything(table: Table) -> list[tuple[float, dict[str, Any], Fidelity]]:
    """Return loss, configuration and fidelity of every cell, asked one by one."""
    found = []
    for round_, rate, batch, share in itertools.product(
        ROUNDS, SPACE["learning_rate"].grid, SPACE["batch_size"].grid, RATES.grid
    ):
        configuration = {"learning_rate": rate, "batch_size": batch}
        fidelity = Fidelity(round_, float(share))
        answer = table.evaluate(configuration, fidelity, SEEDS)
        loss = np.inf if answer.has_diverged else answer.mean("val", "loss")
        found.append((loss, configuration, fidelity))
    return found


@pytest.mark.parametrize("diverged", [False, True])
def test_figures_of_a_table_are_those_of_exhaustive_search(card: Path, diverged: bool) -> None:
    table = diverging(card) if diverged else Table(card)
    table.card = {**table.card, LABELS: LABEL_LOSSES}
    found, cells = health_of(table), everything(table)
    best, configuration, fidelity = min(cells, key=lambda cell: cell[0])
    assert found["optimum"]["val_loss"] == pytest.approx(best, rel=1e-4)
    assert found["optimum"]["configuration"] == configuration
    assert found["optimum"]["round"] == fidelity.round
    assert found["optimum"]["client_sample_rate"] == fidelity.client_sample_rate
    answer = table.evaluate(configuration, fidelity, SEEDS)
    assert found["optimum"]["test_loss"] == pytest.approx(answer.mean("test", "loss"), rel=1e-4)
    full = [loss for loss, _, at in cells if at == Fidelity(ROUNDS[-1], 1.0)]
    assert len(full) == SPACE.grid_size
    rules: dict[str, Callable[[float], Any]] = {
        "losing": lambda loss: loss > 2.0,
        "near_optimum": lambda loss: loss <= 1.01 * best,
        "diverging": np.isinf,
    }
    for name, rule in rules.items():
        wanted = np.mean([rule(loss) for loss, _, _ in cells])
        assert found[name]["cells"] == pytest.approx(wanted, rel=1e-4)
        wanted = np.mean([rule(loss) for loss in full])
        assert found[name]["full_fidelity"] == pytest.approx(wanted, rel=1e-4)
    assert bool(found["diverging"]["cells"]) == diverged
    assert found["lattice"]["exact"]
    assert found["missing"] == {}


def test_a_table_says_where_its_optimum_lies(card: Path) -> None:
    # The loss falls with the rate's cosine and the batch size: the optimum is in a corner.
    found = health_of(Table(card))
    assert found["edges"] == {"learning_rate": "lowest", "batch_size": "lowest"}
    assert found["lattice"]["grid"]["batch_size"] == [4, 16, 64]
    land = landscape_of(Table(card))
    assert edges(land, {"learning_rate": 0.5, "batch_size": 16}) == {"learning_rate": "highest"}
    assert edges(land, {"learning_rate": 0.3, "batch_size": 50}) == {"batch_size": "highest"}
    assert edges(land, {"learning_rate": 0.01, "batch_size": 20}) == {}


def test_what_the_card_does_not_say_is_missing_with_a_reason(card: Path) -> None:
    found = health_of(Table(card))
    assert found["losing"] is None
    assert "label frequencies" in found["missing"]["losing"]


def test_ranks_between_fidelities_and_seeds(card: Path) -> None:
    found = health_of(Table(card))["kendall"]
    assert found["rounds"]["of"] == [3, 40], "the last stored round up to 9, and the last"
    assert found["client_sample_rates"]["of"] == pytest.approx([1 / 3, 1])
    # The made-up losses of two seeds differ by a factor, up to rounding, and so do those of rates.
    assert found["seeds"]["pairs"] == 1
    assert found["seeds"]["tau"] > 0.95
    assert found["client_sample_rates"]["tau"] > 0.95
    assert -0.1 < found["rounds"]["tau"] <= 1


def test_noise_and_spread_by_hand(card: Path) -> None:
    losses = landscape_of(Table(card)).losses[-1, :, -1]
    found = health_of(Table(card))
    logs = np.log(losses)
    # Two values x, y have the variance (x - y)^2 / 2.
    assert found["seed_noise"] == pytest.approx(
        np.sqrt(np.mean((logs[:, 0] - logs[:, 1]) ** 2 / 2)), rel=1e-4
    )
    assert found["spread"] == pytest.approx(np.log(losses.mean(axis=1)).std(), rel=1e-4)


def test_written_health_changes_no_digest_and_no_arrays(card: Path, tmp_path: Path) -> None:
    before, files = json.loads(card.read_text()), {p.name for p in tmp_path.iterdir()}
    arrays = (tmp_path / before["arrays"]).read_bytes()
    write_health(card, {LABELS: LABEL_LOSSES})
    after = json.loads(card.read_text())
    assert {k: v for k, v in after.items() if k not in (LABELS, HEALTH)} == before
    assert {p.name for p in tmp_path.iterdir()} == files
    assert (tmp_path / before["arrays"]).read_bytes() == arrays
    table = Table(card)
    assert table.digest == before[DIGEST_ENTRY]
    assert health_on(table, "x") == health_of(table)
    write_health(card)
    assert json.loads(card.read_text()) == after, "written again, it is the same"


def test_entries_that_decide_a_number_cannot_be_added(card: Path) -> None:
    before = card.read_bytes()
    for name in ("seeds", "arrays", DIGEST_ENTRY, "new"):
        with pytest.raises(InvalidArgumentError, match="must decide no answer"):
            add_to_card(card, FORMAT, {name: 1})
    assert card.read_bytes() == before


def test_health_of_other_numbers_is_refused(card: Path) -> None:
    with pytest.raises(DamagedDataError, match="states no health; run `make it`"):
        health_on(Table(card), "make it")
    write_health(card)
    add_to_card(card, FORMAT, {HEALTH: {**Table(card).card[HEALTH], "of": "0" * 64}})
    with pytest.raises(DamagedDataError, match="health of other numbers"):
        health_on(Table(card), "make it")


def test_a_surrogate_is_asked_on_a_stated_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.stored.lattice.DRAWS", 64)
    surrogate = open_surrogate("GNN-CiteSeer-v1-nbafl")
    found = health_of(surrogate)
    lattice = found["lattice"]
    assert not lattice["exact"]
    assert lattice["configurations"] == np.prod([len(v) for v in lattice["grid"].values()])
    assert lattice["draws"] == 64
    assert lattice["rounds"] == [9, 125]
    best = found["optimum"]
    fidelity = Fidelity(best["round"], best["client_sample_rate"])
    answer = surrogate.evaluate(best["configuration"], fidelity, surrogate.seeds)
    assert answer.mean("val", "loss") == pytest.approx(best["val_loss"], rel=1e-4)
    for values in itertools.islice(itertools.product(*lattice["grid"].values()), 0, None, 97):
        configuration = dict(zip(lattice["grid"], values, strict=True))
        other = surrogate.evaluate(configuration, fidelity, surrogate.seeds)
        assert other.mean("val", "loss") >= answer.mean("val", "loss")
    assert found["diverging"] is None
    assert "diverged courses are losses like others" in found["missing"]["diverging"]


# ------------------------------------------------- the health of everything that the package stores

CARDS = sorted(card for ending in KINDS for card in EMBEDDED_FOLDER.glob(f"*{ending}"))
_EDGES = "the optimum lies at two or more ends that are natural: of batches, epochs or decay"
UNHEALTHY: dict[str, str] = {
    f"LR-{name}-v1-fedavg-standardized.table.json": _EDGES
    for name in ("Australian", "BloodTransfusion", "BreastCancer", "Car", "Digits", "KC1")
}
"""Tables of version 1 or later that cannot be made healthy, by card, and why."""
COMMAND = "fedhpo-gym health --write"


def version_one() -> list[Path]:
    """Return the cards of stored tables of version 1 or later."""
    tables = [card for card in CARDS if card.name.endswith(".table.json")]
    return [card for card in tables if open_stored(card).identity.version]


def faults_of(stored: StoredNumbers) -> list[str]:
    return faults(health_on(stored, COMMAND), stored.card[LABELS])


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name.removesuffix(".json"))
def test_every_card_states_the_health_of_its_numbers(card: Path) -> None:
    stored = open_stored(card)
    found = health_on(stored, COMMAND)
    assert stored.card[LABELS]["val_loss"] > 0
    optimum = found["optimum"]["configuration"]
    legal = task_of(stored.identity).space  # what the environment can be asked for
    assert legal.validate(optimum) == optimum
    grid = found["lattice"]["grid"]
    assert all(legal[name].contains(value) for name in grid for value in grid[name])
    assert found["lattice"]["exact"] == (not card.name.endswith(".surrogate.json"))


@pytest.mark.slow
def test_what_a_card_of_a_surrogate_states_is_true() -> None:
    stored = open_stored(EMBEDDED_FOLDER / "GNN-CiteSeer-v1-fedprox.surrogate.json")
    assert agree(health_of(stored), dict(health_on(stored, COMMAND)))


def test_tables_of_version_one_are_healthy() -> None:
    found = {card.name: words for card in version_one() if (words := faults_of(open_stored(card)))}
    assert found.keys() == UNHEALTHY.keys(), found


def test_a_degenerate_table_would_be_noticed() -> None:
    words = ["optimum loses to the label frequencies", "optimum at more than one edge"]
    assert faults_of(open_stored(EMBEDDED_FOLDER / "LR-CreditG-fedavg.table.json")) == words


def test_a_wrong_figure_would_be_noticed() -> None:
    stored = open_stored(EMBEDDED_FOLDER / "LR-CreditG-fedavg.table.json")
    found = dict(health_on(stored, COMMAND))
    changes: list[dict[str, Any]] = [{"seed_noise": found["seed_noise"] * 1.01}, {"edges": {}}]
    for change in (*changes, {"new": None}):
        assert not agree({**found, **change}, found)


@pytest.mark.slow
def test_the_page_says_what_the_cards_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python docs/site/problems_table.py`"
    assert CSV.read_text(encoding="utf-8") == csv_text(), "run `python docs/site/problems_table.py`"
