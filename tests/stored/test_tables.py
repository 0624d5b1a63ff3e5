"""Stored tables: writing, finding, reading, and every way in which a file can be damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli import make_parser
from fedhpo_gym.cli.surrogates import _is_fitted
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    OffGridError,
)
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.catalogue import (
    EMBEDDED_FOLDER,
    ENV_VAR,
    list_tables,
    open_sample,
    open_table,
)
from fedhpo_gym.stored.health import LABELS, agree, health_of, health_on
from fedhpo_gym.stored.table import WHICH, Table, write_table
from fedhpo_gym.tasks import Task, get_task
from stored_files import (
    arrays_of,
    stamped,
    tiny,  # noqa: F401 - a fixture
)

NAME = "LR-CreditG-fedavg"
IDENTITY = Identity(NAME, "LR-CreditG", 0, (("algorithm", "fedavg"), ("alpha", 0.5)))
SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.1, 1.0, "float", values=(0.1, 1.0)),
        Dimension("batch_size", 4, 16, "int", values=(4, 8, 16)),
    )
)
FIDELITY = SearchSpace(
    (
        Dimension("round", 1, 9, "int", values=(1, 3, 9), scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", values=(0.2, 1.0), scope="fidelity"),
    )
)
SAMPLES = np.arange(1, 13).reshape(2, 2, 3) * 10
SEEDS = (1, 2)
GRID = (2, 3, 2, 2)  # learning rates, batch sizes, client sample rates, seeds
CONFIGURATION = {"learning_rate": 1.0, "batch_size": 8}


def made() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the card and the arrays of a table with random numbers."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "best_round": rng.integers(1, 10, (3, *GRID)).astype(np.uint16),
        "diverged_at": np.zeros(GRID, np.uint16),
    }
    arrays["diverged_at"][1, 1, 1, 0] = 3
    for which in WHICH:
        for s, split in enumerate(SPLITS):
            for metric in METRICS:
                values = rng.uniform(0, 1, (3, *GRID, 2))
                arrays[f"{which}_{split}_{metric}"] = codec.encode(metric, values, SAMPLES[..., s])
    card = {
        **IDENTITY.to_card(),
        "space": SPACE.to_dict(),
        "fidelity_space": FIDELITY.to_dict(),
        "seeds": list(SEEDS),
        "num_samples": SAMPLES.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "build_command": "fedhpo-gym build FedHPO-LR-CreditG-v0 --algorithm fedavg",
    }
    return card, arrays


NOWHERE = Identity(
    "LR-Nope-v3-fedopt-alpha0.7", "LR-Nope", 3, (("algorithm", "fedopt"), ("alpha", 0.7))
)
"""Nobody has stored it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the table folder, with one table in it."""
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    write_table(tmp_path, *made())
    return tmp_path


def assert_command_parses(message: str, options: dict[str, str]) -> None:
    commands = re.findall(r"`fedhpo-gym (build [^`]*)`", message)
    assert len(commands) == 1, message
    parsed = vars(make_parser().parse_args(commands[0].split()))
    assert {name: parsed[name] for name in options} == options


def test_what_was_written_is_read(folder: Path) -> None:
    table = open_table(NAME)
    card, arrays = made()
    assert (table.name, table.seeds, table.rounds, table.rates) == (
        NAME,
        SEEDS,
        (1, 3, 9),
        (0.2, 1.0),
    )
    assert (table.space, table.fidelity_space) == (SPACE, FIDELITY)
    for name, array in arrays.items():
        np.testing.assert_array_equal(table.codes(name), array)
        assert table.codes(name).dtype == array.dtype
    assert table.card["bytes"] == arrays_of(folder / f"{NAME}.table.json").stat().st_size
    assert set(card) < set(table.card)


@pytest.mark.usefixtures("folder")
def test_one_cell_read_by_hand() -> None:
    table, (_, arrays) = open_table(NAME), made()
    found = table.evaluate(CONFIGURATION, Fidelity(3, 1.0), (2, 1))
    cell = (1, 1, 1, 1)  # round 3, learning rate 1.0, batch size 8, rate 1.0
    for row, seed in enumerate((1, 0)):
        assert found.best_round[row] == arrays["best_round"][*cell, seed]
        for s, split in enumerate(SPLITS):
            for m, metric in enumerate(METRICS):
                for which, values in (("best", found.best), ("current", found.current)):
                    codes = arrays[f"{which}_{split}_{metric}"][*cell, seed]
                    expected = codec.decode(metric, codes, SAMPLES[seed, :, s])
                    assert values is not None
                    np.testing.assert_array_equal(values[row, :, s, m], expected)
    np.testing.assert_array_equal(found.num_samples, SAMPLES[[1, 0]])
    assert found.seeds == (2, 1)


@pytest.mark.parametrize(("rounds", "diverged"), [(1, False), (3, True), (9, True)])
@pytest.mark.usefixtures("folder")
def test_a_course_has_diverged_from_its_round_on(rounds: int, diverged: bool) -> None:
    found = open_table(NAME).evaluate(CONFIGURATION, Fidelity(rounds, 1.0), SEEDS)
    assert found.diverged.tolist() == [diverged, False]
    asked = {**CONFIGURATION, "round": rounds, "client_sample_rate": 1.0}
    columns = {name: np.array([value, value]) for name, value in asked.items()}
    many = open_table(NAME).look_up(columns, (2, 1))
    assert many.diverged.tolist() == [[False, diverged]] * 2


@pytest.mark.usefixtures("folder")
def test_the_objective_is_the_weighted_mean() -> None:
    table = open_table(NAME)
    objective = table.objective()
    assert objective.shape == (3, *GRID)
    for seed in SEEDS:
        answer = table.evaluate(CONFIGURATION, Fidelity(9, 0.2), (seed,))
        assert objective[2, 1, 1, 0, seed - 1] == pytest.approx(answer.mean("val", "loss"))


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    card, arrays = made()
    backwards = dict(reversed(arrays.items()))
    first, second = (
        write_table(tmp_path / "a", card, arrays),
        write_table(tmp_path / "b", card, backwards),
    )
    assert first.read_bytes() == second.read_bytes()
    assert arrays_of(first).read_bytes() == arrays_of(second).read_bytes()
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".json", ".npz"}


@pytest.mark.parametrize(
    ("configuration", "fidelity", "message"),
    [
        ({"learning_rate": 0.5, "batch_size": 8}, Fidelity(3, 1.0), r"0\.1, 1\.0"),
        ({"learning_rate": 1.0, "batch_size": 13}, Fidelity(3, 1.0), "8, 16"),
        (CONFIGURATION, Fidelity(7, 1.0), "3, 9"),
        (CONFIGURATION, Fidelity(3, 0.6), r"0\.2, 1\.0"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_off_the_grid_is_an_error_that_names_the_neighbours(
    configuration: dict[str, Any], fidelity: Fidelity, message: str
) -> None:
    with pytest.raises(OffGridError, match=message):
        open_table(NAME).evaluate(configuration, fidelity, SEEDS)


# ---------------------------------------------------------------------------------- damage


def with_(**entries: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **entries}).encode()


def test_a_table_of_something_else_is_not_used(folder: Path) -> None:
    assert open_table(NAME).identity == open_table(IDENTITY).identity == IDENTITY
    path = folder / f"{NAME}.table.json"
    path.write_bytes(stamped(with_(alpha=0.7)(path.read_bytes())))
    with pytest.raises(DamagedDataError, match=r"alpha 0\.7.*not to `.*alpha 0\.5.*delete it"):
        open_table(IDENTITY)


def test_what_damages_a_card_names_the_command_of_whoever_asks(folder: Path) -> None:
    (folder / f"{NAME}.table.json").write_text("{", encoding="utf-8")
    other = replace(IDENTITY, task="LR-Other")
    for wanted in (IDENTITY, other):
        with pytest.raises(DamagedDataError) as caught:
            open_table(wanted)
        assert_command_parses(str(caught.value), {"id": wanted.id, "algorithm": "fedavg"})


# --------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        (NOWHERE, {"id": "FedHPO-LR-Nope-v3", "algorithm": "fedopt", "alpha": 0.7}),
        (replace(NOWHERE, options=()), {"id": "FedHPO-LR-Nope-v3", "alpha": None}),
        (replace(NOWHERE, settings=(("mu", 1e-05),)), {"settings": ["mu=1e-05"]}),
        (NOWHERE.name, {"id": "ID", "alpha": None}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_missing_table_names_the_command_that_builds_it(
    wanted: str | Identity, options: dict[str, Any]
) -> None:
    with pytest.raises(MissingDataError, match=repr(NOWHERE.name)) as caught:
        open_table(wanted)
    assert_command_parses(str(caught.value), options)


@pytest.mark.usefixtures("folder")
def test_what_it_has_not_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match=r"seed.*\(1, 2\).*got \[7"):
        open_table(NAME).evaluate(CONFIGURATION, Fidelity(3, 1.0), (7,))
    with pytest.raises(InvalidArgumentError, match=r"'worst'.*best_round"):
        open_table(NAME).codes("worst")


@pytest.mark.usefixtures("folder")
def test_the_users_tables_are_found_and_listed() -> None:
    assert NAME in list_tables()
    assert open_table(NAME) is open_table(NAME), "a table is read once"


def test_a_table_that_was_built_anew_is_read_anew(folder: Path) -> None:
    before = open_table(NAME)
    card, arrays = made()
    arrays["best_round"][:] = 1
    path = write_table(folder, card, arrays)
    assert path.stat().st_mtime_ns != 0
    after = open_table(NAME)
    assert after.sha256 != before.sha256
    assert (after.codes("best_round") == 1).all()


SEGMENT = (
    "99c76cfe3e92d4193893cdd18549f327eb5043f0b652c0549cfb719299015d5f",
    "20b380d201201aca1dba1028726d6bfcca7e702c2cb365d10699bc226e7d6be2",
)
"""Digest of the card, and checksum of the arrays, that were published in format 1."""


def test_published_records_still_name_the_numbers_in_the_package() -> None:
    backend = make_backend("tabular", get_task("LR-Segment-v0"))
    former = {f"table-sha256:{sha256}" for sha256 in SEGMENT}
    assert former < {*backend.former_fingerprints}
    assert backend.fingerprint not in former
    card = EMBEDDED_FOLDER / "GNN-Cora-v1-fedavg.surrogate.json"
    assert _is_fitted(card, open_sample("GNN-Cora-fedavg"))


# ----------------------------------------------------------------------------------- laws


TABLES = [name for name in list_tables() if "-v1-" in name] + ["LR-BloodTransfusion-fedavg"]
"""What version 0 stores stays for good, and one of it is enough."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_stored_table_keeps_the_laws_and_its_card_is_true(name: str) -> None:
    table = open_table(name)
    assert_laws_of_learning_curves(table)
    assert agree(health_of(table), dict(health_on(table, "build it again")))


@pytest.mark.slow
def test_a_table_built_now_keeps_the_laws_of_learning_curves(tiny: Task) -> None:  # noqa: F811
    table = open_table(tiny.table_name)
    assert_laws_of_learning_curves(table)
    assert health_on(table, "build it again")["lattice"]["exact"]
    # Two classes that are not equally frequent: 357 and 212 of 569 samples.
    assert 0.5 < table.card[LABELS]["val_loss"] < 0.75


def assert_laws_of_learning_curves(table: Table) -> None:
    best_round = table.codes("best_round").astype(int)
    rounds = np.array(table.rounds).reshape(-1, *[1] * (best_round.ndim - 1))
    objective = table.objective()
    # A stored loss is off by 2^-9 at most, so a lower one may look higher by twice that.
    assert (np.diff(objective, axis=0) <= 2**-8 * objective[:-1]).all()
    assert ((best_round >= 1) & (best_round <= rounds)).all()
    assert (np.diff(best_round, axis=0) >= 0).all()
    for split in SPLITS:
        for metric in METRICS:
            best, current = (table.codes(f"{w}_{split}_{metric}") for w in WHICH)
            stored = best_round == rounds
            np.testing.assert_array_equal(best[stored], current[stored])
            values = table.values("best", split, metric)
            assert np.isfinite(values).all()
            assert values.min() >= 0
            assert metric == "loss" or values.max() <= 1
