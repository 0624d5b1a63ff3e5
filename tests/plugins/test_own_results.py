"""A table of finished courses becomes an id: its numbers are those of the table."""

from __future__ import annotations

import errno
import itertools
import math
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas

import fedhpo_gym
from fedhpo_gym import cli
from fedhpo_gym.backends import make_backend
from fedhpo_gym.core import archive
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored import health
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.own import read_task_file
from fedhpo_gym.testing import BackendConformance

ROUNDS, RATES, SEEDS, CLIENTS = (1, 5, 20), (0.5, 1.0), (1, 2), ("a", "b", "c")
RATES_OF_LEARNING, DEPTHS, OPTIMIZERS = (0.001, 0.01, 0.1), (1, 2), ("sgd", "adam")


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "tables"))
    return tmp_path / "tables"


def made_frame(clients: tuple[str, ...] = CLIENTS) -> Any:
    """Return a complete grid of courses, in no order."""
    rng = np.random.default_rng(0)
    keys = itertools.product(RATES_OF_LEARNING, DEPTHS, OPTIMIZERS, RATES, SEEDS, ROUNDS, clients)
    names = ["lr", "depth", "optimizer", "client_sample_rate", "seed", "round", "client"]
    frame = pandas.DataFrame(list(keys), columns=names)
    frame["train_loss"], frame["val_loss"] = rng.random((2, len(frame)))
    frame["val_samples"] = frame["client"].map({"a": 10, "b": 20, "c": 30, "all": 60})
    frame["val_accuracy"] = rng.integers(0, 11, len(frame)) / 10
    frame["note"] = "mine"
    return frame.sample(frac=1.0, random_state=0)


MINE: dict[str, Any] = {"columns": {"lr": "learning_rate"}, "classes": 4}


def weighted(rows: Any, name: str) -> float:
    return float(np.average(rows[name], weights=rows["val_samples"]))


def reference(frame: Any, cell: dict[str, Any], last: int, name: str) -> float:
    """Return a metric at the lowest weighted validation loss up to a round, of one seed."""
    rows = frame.loc[(frame[list(cell)] == pandas.Series(cell)).all(axis=1)]
    by_round = [rows[rows["round"] == r] for r in ROUNDS if r <= last]
    return weighted(min(by_round, key=lambda one: weighted(one, "val_loss")), name)


@pytest.mark.slow
def test_a_complete_grid_answers_with_its_own_numbers() -> None:
    frame = made_frame()
    env_id, card = fedhpo_gym.import_results(frame, "Mine", 1000, **MINE)
    assert (env_id, card.name) == (
        "FedHPO-Results-Mine-v0",
        "Results-Mine-fedavg-imported.table.json",
    )
    backend = make_backend("tabular", get_task("Results-Mine"), seed=2)
    space = backend.space
    assert {d.name: (d.kind, d.log, d.grid) for d in space.dimensions} == {
        "learning_rate": ("float", True, RATES_OF_LEARNING),
        "depth": ("int", False, DEPTHS),
        "optimizer": ("category", False, tuple(sorted(OPTIMIZERS))),
    }
    for lr, depth, optimizer, rate, last in itertools.product(
        RATES_OF_LEARNING, DEPTHS, OPTIMIZERS, RATES, ROUNDS
    ):
        asked = {"learning_rate": lr, "depth": depth, "optimizer": optimizer}
        found = backend.evaluate(asked, Fidelity(last, rate))
        cell = {
            "lr": lr, "depth": depth, "optimizer": optimizer,
            "client_sample_rate": rate, "seed": 2,
        }  # fmt: skip
        for name, error in (("val_loss", 2**-8), ("val_accuracy", 1e-6)):
            expected = reference(frame, cell, last, name)
            metric = name.removeprefix("val_")
            assert found.mean("val", metric) == pytest.approx(expected, rel=error)  # type: ignore[arg-type]


class TestImported(BackendConformance):
    rate, rounds = 0.5, ROUNDS

    def make(self) -> Any:
        fedhpo_gym.import_results(made_frame(), "Mine", 1000, **MINE)
        return make_backend("tabular", get_task("Results-Mine"))


def test_what_was_not_measured_is_refused_by_name_and_fairness_needs_clients() -> None:
    fedhpo_gym.import_results(made_frame(), "Mine", 1000, **MINE)
    fedhpo_gym.import_results(made_frame(("all",)), "Means", 1000, clients=5, **MINE)
    env = gym.make("MO-FedHPO-Results-Mine-v0", objectives=["val_loss", "fairness_p10", "time_s"])
    env.reset(seed=0)
    observation, reward, *_, info = env.step(np.zeros(env.action_space.shape, np.float32))  # type: ignore[arg-type]
    assert env.observation_space.contains(observation)
    assert np.isfinite(reward).all()
    assert info["test"] == {}
    for name, objective, words in (
        ("Mine", "test_loss", "no column 'test_loss'"),
        ("Mine", "flops", "lack one of the columns train_samples"),
        ("Means", "fairness_std", "means over clients"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{objective}.*{words}"):
            gym.make(f"FedHPO-Results-{name}-v0", objectives=[objective])
    with pytest.raises(InvalidArgumentError, match="stored"):
        gym.make("FedHPO-Results-Mine-v0", backend="raw")
    assert "FedHPO-DAC-Results-Mine-v0" not in gym.registry


@pytest.mark.slow
def test_a_grid_with_holes_gets_a_surrogate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random search over two hyperparameters; not all courses have all rounds."""
    rng = np.random.default_rng(1)
    rows = []
    for course in range(60):
        lr, momentum = 10 ** rng.uniform(-4, 0), rng.uniform(0, 0.9)
        for round_ in ROUNDS[: 2 if course % 3 else 3]:
            loss = 0.3 + (np.log10(lr) + 2) ** 2 / 4 + 0.2 * momentum + 1 / round_
            rows.append((lr, momentum, round_, loss, 1 / (1 + loss)))
    path = tmp_path / "search.csv"
    columns = ["lr", "momentum", "round", "val_loss", "val_accuracy"]
    pandas.DataFrame(rows, columns=columns).to_csv(path, index=False)
    assert cli.main(["import", str(path)]) == cli.ERROR
    assert "must describe the results: lines `name = " in capsys.readouterr().err
    path.with_suffix(".toml").write_text('name = "Search"\nparameters = 10\nclients = 5\n')
    assert cli.main(["import", str(path)]) == 0
    assert capsys.readouterr().out.endswith("fedhpo-gym surrogate FedHPO-Results-Search-v0\n")
    assert (
        cli.main(["surrogate", "FedHPO-Results-Search-v0", "--candidate", "gaussian_process"]) == 0
    )
    surrogate = make_backend("surrogate", get_task("Results-Search"))
    asked = [{"lr": lr, "momentum": 0.4} for lr in (0.01, 0.9)]
    good, bad = (surrogate.evaluate(one, Fidelity(20, 1.0)).mean("val", "loss") for one in asked)
    assert good == pytest.approx(0.43, abs=0.2)
    assert bad > good + 0.3
    env = gym.make("FedHPO-Results-Search-v0")
    env.reset(seed=0)
    observation, *_, info = env.step(np.zeros(env.action_space.shape, np.float32))  # type: ignore[arg-type]
    assert env.observation_space.contains(observation)
    assert info["test"] == {}
    best = fedhpo_gym.truth("FedHPO-Results-Search-v0").best_query[0]
    assert best["lr"] == pytest.approx(0.01, rel=1.0)
    for words in (["list", "Results"], ["show", "FedHPO-Results-Search-v0"]):
        assert cli.main(words) == 0
    assert "(test not known, test accuracy not known)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_another_process_knows_the_id(run_python: Any) -> None:
    fedhpo_gym.import_results(made_frame(), "Mine", 1000, **MINE)
    code = (
        "import gymnasium, fedhpo_gym\n"
        "print(gymnasium.make('FedHPO-Results-Mine-v0').reset(seed=0)[1]['fingerprint'])"
    )
    here = gym.make("FedHPO-Results-Mine-v0").reset(seed=0)[1]["fingerprint"]
    assert run_python(code).strip() == here


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda f: f.assign(val_accuracy=100 * f["val_accuracy"]),
            r"'val_accuracy' must be in \[0, 1\]",
        ),
        (lambda f: f.assign(val_accuracy=0.123), "must be a share of 'val_samples'"),
        (lambda f: f.assign(val_loss=np.nan), "'val_loss' must be finite in one row at least"),
        (
            lambda f: f.assign(val_loss=f["val_loss"].where(f["round"] != 5)),
            "'val_loss' must be finite in no round after .*leave the course out",
        ),
        (
            lambda f: f.assign(val_loss=f["val_loss"].where(f.index != 0)),
            "'val_loss' must be finite in no round after",
        ),
        (
            lambda f: f.assign(val_accuracy=f["val_accuracy"].where(f.index != 0)),
            "'val_accuracy' must be finite wherever 'val_loss' is, and is not in round 1 of",
        ),
        (lambda f: f.assign(val_samples=300, val_accuracy=0.2667), None),
        (lambda f: f.assign(val_samples=300, val_accuracy=0.2677), "share.*got 0.2677 of 300"),
        (lambda f: f.assign(val_loss=-f["val_loss"]), "'val_loss' must be at least 0"),
        (lambda f: f.drop(columns="val_loss"), "must have a column `val_loss`"),
        (lambda f: f.drop(columns="round"), "`rounds` must say"),
        (lambda f: f.iloc[1:], "got none of client 'b' in round 1 of"),
        (lambda f: f[f["round"] != 5], None),
        (
            lambda f: f[(f["round"] != 5) | (f["depth"] == 1)],
            "no round left out before its last, got none of client 'a' in round 5",
        ),
        (lambda f: pandas.concat([f, f.iloc[:1]]), "got several of client 'b' in round 1 of"),
        (lambda f: f.assign(seed="x"), "numbers in 'seed', got 'x'"),
        (lambda f: f.assign(depth=np.where(f["depth"] == 1, 1.0, np.nan)), "a value in each row"),
        (lambda f: f.assign(val_samples=range(len(f))), "share|one count"),
        (lambda f: f.assign(lr=1, depth=1, optimizer="sgd"), "a hyperparameter that varies"),
    ],
)
def test_what_is_no_table_of_courses_is_refused(
    change: Any, words: str | None, tables: Path
) -> None:
    frame = change(made_frame())
    if words is None:
        fedhpo_gym.import_results(frame, "Mine", 10, **MINE)
        return
    with pytest.raises(FedHPOError, match=words):
        fedhpo_gym.import_results(frame, "Mine", 10, **MINE)
    with pytest.raises(InvalidArgumentError, match="`clients` must be left out where a column"):
        fedhpo_gym.import_results(made_frame(), "Mine", 10, clients=9, **MINE)
    assert not [*tables.glob("*.json")]


def test_results_of_one_name_answer_with_the_last_import(tables: Path) -> None:
    """A complete grid is a table, one with holes a sample: one of them is there."""
    whole = made_frame(("all",)).query("seed == 1 and client_sample_rate == 1")
    some = whole[(whole["lr"] != 0.1) | (whole["depth"] == 1)]
    for frame, kind in ((whole, "table"), (some, "sample"), (whole, "table")):
        fedhpo_gym.import_results(frame, "Mine", 10, clients=3, **MINE)
        assert [path.name.split(".")[1] for path in tables.iterdir()] == [kind, kind]


@pytest.mark.parametrize("at", ["health", "numbers"])
def test_an_import_that_fails_leaves_what_was_there(
    at: str, tables: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = made_frame()
    fedhpo_gym.import_results(frame, "Mine", 10, **MINE)
    content = {p: p.read_bytes() for d in (tables, own_folder) for p in d.rglob("*") if p.is_file()}
    assert len(content) == 3
    full = OSError(errno.ENOSPC, "No space left on device")
    module, name = {"health": (health, "health_of"), "numbers": (archive, "_pack_arrays")}[at]
    monkeypatch.setattr(module, name, mock.Mock(side_effect=full))
    with pytest.raises(OSError, match="No space"):
        fedhpo_gym.import_results(frame.assign(val_loss=9.0), "Mine", 10, **MINE)
    after = {p: p.read_bytes() for d in (tables, own_folder) for p in d.rglob("*") if p.is_file()}
    assert after == content


@pytest.mark.parametrize("clients", [CLIENTS, ("all",)])
def test_objectives_by_default_vary(clients: tuple[str, ...]) -> None:
    count = {} if len(clients) > 1 else {"clients": 3}
    fedhpo_gym.import_results(made_frame(clients), "Mine", 10, **count, **MINE)
    env = gym.make("MO-FedHPO-Results-Mine-v0")
    names = [one.name for one in env.unwrapped.objectives]  # type: ignore[attr-defined]
    assert names == ["val_loss", *["fairness_p10"] * (len(clients) > 1), "time_s"]


def test_show_says_that_results_are_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    fedhpo_gym.import_results(made_frame(), "Mine", 10, **MINE)
    assert cli.main(["show", "FedHPO-Results-Mine-v0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "by its imported results, Mine: 10 parameters, 4 classes, 3 clients." in shown
    assert "it looks up one configuration, for up to 20 rounds" in shown
    assert "Other variants" not in shown


def test_words_of_a_table_do_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    frame = made_frame().replace({"optimizer": {"adam": "\x1b[2J\x07\u202eadam"}})
    fedhpo_gym.import_results(frame, "Mine", 10, **MINE)
    assert cli.main(["show", "FedHPO-Results-Mine-v0"]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2J\\x07\\u202eadam" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_hyperparameter_without_a_value_is_refused_with_advice() -> None:
    frame = made_frame()
    frame["momentum"] = np.where(frame["optimizer"] == "sgd", 0.9, np.nan)
    with pytest.raises(InvalidArgumentError, match=r"'momentum', got none .* by `leave_out`"):
        fedhpo_gym.import_results(frame, "Mine", 10, **MINE)


def test_nan_is_divergence() -> None:
    frame = made_frame(("all",)).drop(columns=["val_samples"])
    wrong = (frame["lr"] == 0.1) & (frame["round"] > 1)
    frame.loc[wrong, "val_loss"] = np.nan
    fedhpo_gym.import_results(frame, "Mine", 10, clients=3, **MINE)
    backend = make_backend("tabular", get_task("Results-Mine"))
    asked = {"learning_rate": 0.1, "depth": 1, "optimizer": "sgd"}
    assert [backend.evaluate(asked, Fidelity(r, 1.0)).has_diverged for r in ROUNDS] == [
        False,
        True,
        True,
    ]


def test_final_results_alone_are_one_round() -> None:
    frame = made_frame(("all",))
    frame = frame[frame["round"] == 20].drop(columns=["round", "client", "seed"])
    frame = frame.drop_duplicates(["lr", "depth", "optimizer", "client_sample_rate"])
    env_id, _ = fedhpo_gym.import_results(frame, "Last", 10, clients=3, rounds=100, **MINE)
    env = gym.make(env_id)
    env.reset(seed=0)
    *_, info = env.step(np.zeros(env.action_space.shape, np.float32))  # type: ignore[arg-type]
    assert info["fidelity"]["round"] == 100
    [loss] = frame.loc[
        (frame["lr"] == info["configuration"]["learning_rate"])
        & (frame["depth"] == info["configuration"]["depth"])
        & (frame["optimizer"] == info["configuration"]["optimizer"])
        & (frame["client_sample_rate"] == info["fidelity"]["client_sample_rate"]),
        "val_loss",
    ]
    assert info["objectives"]["val_loss"] == pytest.approx(loss, rel=2**-8)


def test_a_task_file_reads_as_what_was_meant_before_it_replaces_another(own_folder: Path) -> None:
    frame, odd = made_frame(), '😀 "s" \\ \x01 é'
    frame["optimizer"] = frame["optimizer"].replace("sgd", odd)
    env_id, _ = fedhpo_gym.import_results(frame, "Mine", 1000, citation=odd, **MINE)
    path = own_folder / "Results-Mine-v0.toml"
    task = read_task_file(path)["Results-Mine-v0"]()
    assert task.citation == odd
    assert odd in task.space["optimizer"].grid
    assert env_id == "FedHPO-Results-Mine-v0"
    before = path.read_bytes()
    for wrong, words in (
        ({"citation": "\ud800"}, "must fit into a task file: 'utf-8' codec"),
        ({"budget_s": math.inf}, "`budget_s` must be above 0 and finite, got inf"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            fedhpo_gym.import_results(frame, "Mine", 1000, **MINE, **wrong)
        assert path.read_bytes() == before
    gym.make(env_id).reset(seed=0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rounds = []", "rounds"),
        ("rounds = [5, 1]", "increasing"),
        ("rounds = [0, 1]", "rounds"),
        ("client_sample_rates = []", "client_sample_rates"),
        ("client_sample_rates = [2.0]", "client_sample_rates"),
        ("seeds = []", "seeds"),
        ('name = "a/b"', "name"),
        ("space = { lr = {} }", "space"),
        ("space = { lr = { values = [1, 2], code = 1 } }", "code"),
        ("space = {}", "space"),
        ("parameters = 0", "parameters"),
        ("data = 3", "data"),
    ],
)
def test_a_task_file_that_is_wrong_is_named(line: str, words: str, tmp_path: Path) -> None:
    good = {
        "name": '"Mine"', "parameters": "1", "clients": "2", "classes": "2", "rounds": "[1, 5]",
        "client_sample_rates": "[1.0]", "seeds": "[1]", "space": "{ lr = { values = [1, 2] } }",
    }  # fmt: skip
    path = tmp_path / "mine.toml"
    for changed in ({}, dict([line.split(" = ", 1)])):
        lines = [f"{name} = {value}" for name, value in {**good, **changed}.items()]
        path.write_text("\n".join(['kind = "results"', *lines]))
        if not changed:
            assert fedhpo_gym.register_task_file(path) == ("FedHPO-Results-Mine-v0",)
            continue
        with pytest.raises(InvalidArgumentError, match=words):
            fedhpo_gym.register_task_file(path)
