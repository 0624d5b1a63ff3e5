"""Results that are imported again: nothing of the former import answers for the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas

import fedhpo_gym
from fedhpo_gym import cli
from fedhpo_gym.backends import default_backend, make_backend
from fedhpo_gym.building.surrogate_fit import fit_surrogate
from fedhpo_gym.cli.listing import backends, stored_names
from fedhpo_gym.core import archive
from fedhpo_gym.core.archive import move_archive
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.core.identity import FEDHPO_BENCH
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.stored.surrogate import with_surrogate
from fedhpo_gym.tasks import get_task

ID = "FedHPO-Results-Search-v0"


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "tables"))
    return tmp_path / "tables"


def search(shift: float, courses: int = 8) -> Any:
    """Return a random search whose losses are `shift` and something."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(courses):
        lr, momentum = 10 ** rng.uniform(-3, 0), rng.uniform(0, 0.9)
        for round_ in (1, 5, 20):
            loss = shift + 0.3 + (np.log10(lr) + 1) ** 2 / 4 + momentum / 5 + np.exp(-round_ / 5)
            rows.append({"lr": lr, "momentum": momentum, "round": round_, "val_loss": loss})
    return pandas.DataFrame(rows)


def import_search(shift: float, courses: int = 8, clients: int = 10) -> Path:
    frame = search(shift, courses)
    return fedhpo_gym.import_results(frame, "Search", 100, clients=clients)[1]


def write_card(name: str, entries: dict[str, Any], folder: Path) -> Path:
    """Write the entries by which the card of a surrogate names the numbers it was fitted on."""
    path = folder / f"{name}.surrogate.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


@pytest.mark.parametrize("entry", ["numbers_sha256", "sample_sha256"])
def test_a_surrogate_of_replaced_numbers_does_not_answer(entry: str, tables: Path) -> None:
    """Cards written before `numbers_sha256` name the arrays alone."""
    content = json.loads(import_search(0.0).read_text())
    digest = content["card_sha256" if entry == "numbers_sha256" else "sha256"]
    task = get_task("Results-Search")
    write_card(task.table_name, {entry: digest}, tables)
    assert default_backend(task) == "surrogate"
    assert backends(task, stored_names()) == ["surrogate", "tabular"]
    import_search(0.0)
    assert default_backend(get_task("Results-Search")) == "surrogate"
    import_search(2.0)
    task = get_task("Results-Search")
    assert default_backend(task) == "tabular"
    assert backends(task, stored_names()) == ["tabular"]
    with pytest.raises(DamagedDataError, match=r"other numbers .* again with `fedhpo-gym"):
        make_backend("surrogate", task)
    env = gym.make(ID)
    env.reset(seed=0)
    *_, info = env.step(np.zeros(env.action_space.shape, np.float32))  # type: ignore[arg-type]
    assert info["objectives"]["val_loss"] > 2.3


def test_a_surrogate_of_a_replaced_archive_of_fedhpo_bench_does_not_answer(tables: Path) -> None:
    task = get_task("LR-CreditG-v0").variant(table=FEDHPO_BENCH)
    tables.mkdir()
    numbers = tables / f"{task.table_name}.table.json"
    write_card(task.table_name, {"table_sha256": "a"}, tables)
    for sha256, names in (("a", [task.identity]), ("b", [])):
        numbers.write_text(json.dumps({"sha256": sha256}), encoding="utf-8")
        assert with_surrogate(task.surrogate_identities) == names
    numbers.unlink()
    assert with_surrogate(task.surrogate_identities) == [task.identity]


@pytest.mark.slow
def test_a_fitted_surrogate_names_the_numbers_it_is_of() -> None:
    content = json.loads(import_search(0.0, courses=40).read_text())
    task = get_task("Results-Search")
    card = fit_surrogate(task.identity, candidate="gaussian_process", keep=True)
    assert json.loads(card.read_text())["numbers_sha256"] == content["card_sha256"]
    assert make_backend("surrogate", task).name == default_backend(task) == "surrogate"
    import_search(2.0, courses=40)
    assert default_backend(get_task("Results-Search")) == "tabular"


def test_numbers_of_another_import_than_the_task_file_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that is ended between the two replacements leaves such a pair."""
    import_search(0.0)

    def ended(card: Path, folder: Path) -> Path:
        move_archive(card, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archive, "move_archive", ended)
        with pytest.raises(KeyboardInterrupt):
            import_search(2.0, clients=50)
    with pytest.raises(DamagedDataError, match=r"`numbers_sha256`.* Run `fedhpo-gym import PATH`"):
        gym.make(ID)
    assert cli.main(["show", ID]) == 0
    assert "tabular: no; the numbers of" in capsys.readouterr().out
    import_search(2.0, clients=50)
    assert make_backend("tabular", get_task("Results-Search")).task.num_clients == 50  # type: ignore[attr-defined]


def test_a_task_in_memory_refuses_numbers_that_another_process_imported() -> None:
    import_search(0.0)
    task = get_task("Results-Search")
    import_search(2.0, clients=50)
    with pytest.raises(DamagedDataError, match=r"`numbers_sha256`.* Run `fedhpo-gym import PATH`"):
        make_backend("tabular", task)
    assert make_backend("tabular", get_task("Results-Search")).task.num_clients == 50  # type: ignore[attr-defined]
