"""A fitted surrogate answers like a table, everywhere, and vouches for itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.building.candidates import CANDIDATES
from fedhpo_gym.building.surrogate_verdicts import NEARLY
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.surrogate import Surrogate, list_surrogates, open_surrogate, write_surrogate
from fedhpo_gym.stored.table import Table
from stored_files import IDENTITY, NAME, ROUNDS, SEEDS, SPACE, arrays_of, stamped

COMMAND = f"fedhpo-gym surrogate {IDENTITY.arguments}"
BETWEEN = {"learning_rate": 0.0317, "batch_size": 23}


def copy_of(folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the card of a copy that a test may damage."""
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(shutil.copytree(folder, target / "tables")))
    return target / "tables" / f"{NAME}.surrogate.json"


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
