"""`fedhpo-gym health ID --survival`: against the backend that trains, and by hand."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.cli import ERROR, health, main
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER, ENV_VAR, open_table
from fedhpo_gym.stored.health import SURVIVAL, survival_on
from fedhpo_gym.stored.lattice import landscape_of
from fedhpo_gym.stored.table import FORMAT
from fedhpo_gym.tasks import get_task
from stored_files import arrays_of

ID, NAME = "FedHPO-LR-BreastCancer-v0", "LR-BreastCancer-fedavg"


@pytest.mark.slow
def test_the_best_cells_are_those_of_exhaustive_search() -> None:
    table = open_table(NAME)
    land = landscape_of(table)
    lowest = []
    for configuration in land.configurations[:40]:
        found = []
        for round_, rate in itertools.product(land.rounds, land.rates):
            answer = table.evaluate(configuration, Fidelity(round_, rate), table.seeds)
            found.append(np.inf if answer.has_diverged else answer.mean("val", "loss"))
        lowest.append(min(found))
    few = type(land)(
        land.space, land.rounds, land.rates, land.configurations[:40], 40,
        land.losses[:, :40], land.exact,
    )  # fmt: skip
    expected = sorted(lowest)[:30]
    cells, means = health.best_cells(few, 30)
    stated = [table.evaluate(c, f, table.seeds).mean("val", "loss") for c, f in cells]
    assert stated == pytest.approx(expected)
    assert means.tolist() == pytest.approx(expected)


def test_unmoved_it_trains_what_the_backend_trains_and_moved_something_else() -> None:
    task = get_task(ID)
    configurations = [task.space.decode(np.full(len(task.space), x)) for x in (-1.0, -0.9)]
    cells = [(configurations[0], Fidelity(9, 1.0)), (configurations[1], Fidelity(3, 0.6))]
    plain, again, moved = (health.train_cells(task, (1, 2), cells, d) for d in (0, 0, 1))
    for row, (configuration, fidelity) in zip(plain, cells, strict=True):
        for loss, seed in zip(row, (1, 2), strict=True):
            answer = Raw(task, seed).evaluate(configuration, fidelity)
            assert loss == answer.mean("val", "loss")
    assert np.array_equal(plain, again)
    assert not np.array_equal(plain, moved)
    assert moved == pytest.approx(plain, rel=1e-3)  # so small steps are no chaos


def test_every_weight_moves_and_none_by_more_than_it_says() -> None:
    weights = np.array([0.0, 1e-6, -0.3, 1.0, 50.0], np.float32)
    found = health.perturb_weights(weights, np.random.default_rng(0))
    away = np.abs(found.astype(np.float64) - weights)
    step = np.maximum(1e-8 * np.maximum(np.abs(weights), 1.0), np.spacing(np.abs(weights)))
    assert (away > 0).all()
    torch = pytest.importorskip("torch")
    tensor = health.perturb_weights(torch.from_numpy(weights), np.random.default_rng(0))
    assert np.array_equal(tensor.numpy(), found)
    # A sum is rounded by half of the distance to the neighbour.
    assert (away <= step * 1.01 + np.spacing(np.abs(weights)) / 2).all()


@pytest.mark.slow
def test_it_is_said_and_written_onto_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = EMBEDDED_FOLDER / f"{NAME}.table.json"
    for path in (card, arrays_of(card)):
        shutil.copy(path, tmp_path)
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    monkeypatch.setattr(health, "CELLS", 1)
    monkeypatch.setattr(health, "PERTURBATIONS", 2)
    before = open_table(NAME).digest
    assert main(["health", "--survival"]) == ERROR
    assert "`ID`" in capsys.readouterr().err
    card = tmp_path / f"{NAME}.table.json"
    assert main(["health", ID, "--survival", "--write"]) == 0
    table = open_table(NAME)
    found = table.card[SURVIVAL]
    assert health.survival_words(found) in capsys.readouterr().out
    assert table.digest == before == found["of"]
    assert survival_on(table) == found
    optimum = table.card["health"]["optimum"]
    assert found["optimum"]["stored"] == pytest.approx(optimum["val_loss"], rel=1e-3)
    best = found["optimum"]
    inside = (
        abs(best["lowest"] / best["stored"] - 1)
        <= 0.01
        >= abs(best["highest"] / best["stored"] - 1)
    )
    assert found["surviving"] == int(inside)
    assert main(["show", ID]) == 0
    assert "With initial weights moved" in capsys.readouterr().out
    add_to_card(card, FORMAT, {SURVIVAL: {**found, "of": "other numbers"}})
    assert survival_on(open_table(NAME)) is None
    for entry, wrong in (("cells", "many"), ("optimum", 3.0)):
        add_to_card(card, FORMAT, {SURVIVAL: {**found, entry: wrong}})
        with pytest.raises(DamagedDataError, match=r"survival.*--survival"):
            survival_on(open_table(NAME))
