"""Tables of FedHPO-Bench: its formula is the reference, and no file runs, escapes or explodes."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_bench
import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_bench import GRID, Row, csv_of, made_rows, original_answer, result_of, write_zip
from fedhpo_gym import cli
from fedhpo_gym.backends import make_backend
from fedhpo_gym.building import fedhpo_bench as reader
from fedhpo_gym.building.fedhpo_bench import (
    find_archives,
    import_archive,
    read_bench_archive,
    read_result,
)
from fedhpo_gym.building.results import gather
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    TooLargeError,
    UnknownNameError,
)
from fedhpo_gym.envs.trial.ledger import Prices
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import ENV_VAR, open_sample, open_table
from fedhpo_gym.tasks import Task, get_task

CREDIT = get_task("LR-CreditG-v0").variant(table="fedhpo-bench")
KEYS = {"loss": "avg_loss", "accuracy": "acc", "f1": "f1"}
STEPS = {"loss": (2**-9, 0.0), "accuracy": (0.0, 0.51 / 65_535), "f1": (0.0, 0.51 / 250)}
"""Relative and absolute error of what is stored."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "tables"))
    return tmp_path


def imported(folder: Path, place: str, content: bytes, **others: bytes) -> Path:
    [archive] = find_archives(write_zip(folder / "archive.zip", place, content, **others))
    return import_archive(archive)


def asked_of(task: Task, row: Row) -> dict[str, Any]:
    """Return our configuration of a row of theirs."""
    ours = {reader.COLUMNS.get(name, name): value for name, value in row.items()}
    return {d.name: ours[d.name] - (d.name == "model_depth") for d in task.space.dimensions}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "grid", "every"),
    [
        ("lr/31/avg", "LR-CreditG", GRID, 1),
        (
            "lr/53@openml/opt",
            "LR-Vehicle",
            {**GRID, "lrserver": (0.1, 1.0), "momentumsserver": (0.9,)},
            1,
        ),
        ("mlp/146821/avg", "MLP-Car", {**GRID, "layer": (2.0, 4.0), "hidden": (16.0, 64.0)}, 1),
        ("cnn/femnist/avg", "CNN-FEMNIST", {**GRID, "dropout": (0.0, 0.5), "batch": (16.0,)}, 2),
        ("gcn/cora/prox", "GNN-Cora", {**GRID, "mu": (0.1, 5.0), "batch": (1.0,)}, 1),
    ],
)
def test_answers_are_those_of_the_original_formula(
    folder: Path, place: str, name: str, grid: dict[str, Any], every: int
) -> None:
    """Entry i of a list is after `every` (i + 1) rounds, and the best of those so far counts."""
    rows = made_rows(grid)
    imported(folder, place, csv_of(rows))
    algorithm = reader.NAMED[place.rpartition("/")[2]]
    task = get_task(f"{name}-v0").variant(table="fedhpo-bench", algorithm=algorithm)
    backends = {seed: make_backend("tabular", task, seed=seed) for seed in task.seeds}
    rounds = [int(r) for r in backends[1].fidelity_space["round"].grid]
    assert rounds == [
        r for r in task.stored_fidelity_space()["round"].grid if every <= r <= 12 * every
    ]
    for row in rows[::7]:
        configuration = asked_of(task, row)
        for asked in rounds:
            fidelity = Fidelity(asked, row["sample_client"])
            found = backends[int(row["seed"])].evaluate(configuration, fidelity)
            heard = asked // every
            best = int(np.argmin(row["val_avg_loss"][:heard]))
            assert found.best_round.tolist() == [every * (best + 1)]
            for split in fedhpo_bench.SPLITS:
                for metric, key in KEYS.items():
                    expected = original_answer(row, heard, f"{split}_{key}")
                    relative, absolute = STEPS[metric]
                    near = pytest.approx(expected, rel=relative, abs=absolute)
                    assert found.mean(split, metric) == near
                    now = pytest.approx(
                        row[f"{split}_{key}"][heard - 1], rel=relative, abs=absolute
                    )
                    assert found.mean(split, metric, "current") == now


def test_an_id_answers_by_our_clock_and_refuses_what_means_do_not_say(folder: Path) -> None:
    with pytest.raises(MissingDataError, match="fedhpo-gym import PATH"):
        gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench")
    imported(folder, "lr/31/avg", csv_of(made_rows()))
    env = gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench", grid=True)
    env.reset(seed=0)
    observation, *_, info = env.step(np.ones(6, np.float32))
    assert env.observation_space.contains(observation)
    assert set(info["objectives"]) == {"val_loss", "epsilon"}
    price = Prices(get_task("LR-CreditG-v0"))
    fidelity = info["fidelity"]["round"], info["fidelity"]["client_sample_rate"]
    assert vars(price.charge(info["configuration"], *fidelity)) == info["cost"]
    for objective in ("fairness_std", "fairness_p10", "flops"):
        with pytest.raises(InvalidArgumentError, match=f"{objective}.*FedHPO-Bench's tables"):
            gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench", objectives=[objective])
    for arguments in ({"noise": {"clients": 0.5}}, {"instances": "train"}):
        with pytest.raises(InvalidArgumentError, match="means over clients"):
            gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench", **arguments)
    with pytest.raises(InvalidArgumentError, match="only 'fedhpo-gym' trains"):
        gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench", backend="raw")
    with pytest.raises(UnknownNameError, match="fedhpo-bench"):
        gym.make("FedHPO-LR-CreditG-v0", table="fedhpo")


def test_a_split_that_is_not_there_is_refused_and_the_observation_stays_valid(folder: Path) -> None:
    grid = {**GRID, "batch": (8.0, 16.0), "dropout": (0.0, 0.5)}
    imported(
        folder,
        "bert/cola@huggingface_datasets/avg",
        csv_of(made_rows(grid, splits=("train", "val"))),
    )
    env = gym.make("FedHPO-BERT-CoLA-v0", table="fedhpo-bench")
    env.reset(seed=0)
    observation, *_ = env.step(np.zeros(env.action_space.shape, np.float32))  # type: ignore[arg-type]
    assert env.observation_space.contains(observation)
    with pytest.raises(InvalidArgumentError, match=r"test_loss.*lacks 'test_avg_loss'"):
        gym.make("FedHPO-BERT-CoLA-v0", table="fedhpo-bench", objectives=["test_loss"])


@pytest.mark.slow
def test_what_diverges_has_a_round_and_what_stops_early_keeps_its_best(folder: Path) -> None:
    rows = made_rows(entries=130)
    for split in fedhpo_bench.SPLITS:
        for key in fedhpo_bench.MEASURES:
            rows[0][f"{split}_{key}"][5:] = [float("nan")] * 125
            rows[1][f"{split}_{key}"] = rows[1][f"{split}_{key}"][:110]
    rows[2]["val_avg_loss"][3] = float("inf")
    table = open_table_of(imported(folder, "lr/31/avg", csv_of(rows)))
    fidelities = [Fidelity(r, 0.2) for r in (4, 6, 125)]
    backends = [make_backend("tabular", CREDIT, seed=seed) for seed in (1, 2, 3)]
    configuration = asked_of(CREDIT, rows[0])
    found = [[b.evaluate(configuration, f) for f in fidelities] for b in backends]
    assert [one.has_diverged for one in found[0]] == [False, True, True]
    early = found[1][2]
    assert early.mean("val", "loss") == pytest.approx(min(rows[1]["val_avg_loss"]), rel=2**-9)
    assert early.mean("val", "accuracy", "current") == pytest.approx(
        rows[1]["val_acc"][-1], abs=1e-5
    )
    assert not any(one.has_diverged for one in found[2])
    assert (table.card["diverged_courses"], table.card["stopped_early"]) == (1, 1)


def open_table_of(card: Path) -> Any:
    return open_table(card.name.removesuffix(".table.json"))


def test_a_grid_with_holes_becomes_a_sample(folder: Path) -> None:
    rows = made_rows(entries=20)
    for name in [name for name in rows[4] if isinstance(rows[4][name], list)]:
        rows[4][name] = rows[4][name][:7]  # nothing stops on purpose so early
    rows = [row for number, row in enumerate(rows) if number != 9]
    card = imported(folder, "lr/31/avg", csv_of(rows))
    sample = open_sample(card.name.removesuffix(".sample.json"))
    assert len(sample) == len(rows)
    assert sample.codes("last_round")[4] == 6  # the last stored round of seven
    expected = [original_answer(row, 6, "val_avg_loss") for row in rows]
    np.testing.assert_allclose(
        sample.objective()[:, list(sample.rounds).index(6)], expected, rtol=2**-8
    )
    configurations = [asked_of(CREDIT, row) for row in rows]
    assert sample.configurations() == configurations
    env = gym.make("FedHPO-LR-CreditG-v0", table="fedhpo-bench")  # a pool of what is there
    env.reset(seed=0)
    *_, info = env.step(env.action_space.sample())
    assert info["configuration"] in configurations


def test_the_card_says_where_numbers_come_from(folder: Path) -> None:
    content = csv_of(made_rows())
    card = open_table_of(imported(folder, "lr/31/avg", content)).card
    assert card["imported"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert card["imported"]["fixed"] == {"dropout": 0.0}
    assert card["build_command"] == "fedhpo-gym import PATH"
    mlp = list(reader.defects(get_task("MLP-Car-v0").variant(algorithm="fedopt")))
    assert {"dropout 0.5", "batch normalisation"} <= {
        w for w in ("dropout 0.5", "batch normalisation") if any(w in one for one in mlp)
    }


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(Path(__file__).with_name("pickle_ran")), "w")


def test_a_pickle_beside_the_rows_is_not_read(folder: Path) -> None:
    imported(folder, "lr/31/avg", csv_of(made_rows()), **{"data/info.pkl": pickle.dumps(Bomb())})
    assert not Path(__file__).with_name("pickle_ran").exists()


GOOD = result_of(made_rows(entries=2)[0])


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("'val_acc': [", "'val_acc': [__import__('os').getpid(), ", 1),
        GOOD.replace("'val_acc': [", "'val_acc': [1_0, ", 1),
        GOOD.replace("'val_acc': [", "'val_acc': [0x10, ", 1),
        GOOD.replace("'val_acc': [", "'val_loss': print([", 1),
        GOOD.replace("val_acc", "val_avg_loss"),
        GOOD + "; 1",
        GOOD[:-1],
        GOOD[1:],
        "[1]",
        "{" + "[" * 1000,
        "{}",
    ],
)
def test_a_result_is_lists_of_numbers_or_refused(folder: Path, text: str) -> None:
    rows = made_rows(entries=2)
    texts = [result_of(row) for row in rows[1:]]
    with pytest.raises(DamagedDataError, match=r"archive\.zip"):
        imported(folder, "lr/31/avg", csv_of(rows, [text, *texts]))


def test_numbers_of_new_numpy_and_infinities_are_read() -> None:
    found = read_result(
        "{'val_avg_loss': [np.float64(0.5), nan, inf, 1e-05], 'fairness': [[1], 2]}"
    )
    np.testing.assert_array_equal(found["val_avg_loss"], [0.5, np.nan, np.inf, 1e-5])


@pytest.mark.parametrize("damage", ["truncated", "no gzip", "bit"])
def test_what_is_cut_off_is_no_table(folder: Path, damage: str) -> None:
    content = csv_of(made_rows())
    flipped = bytes([*content[:-5], content[-5] ^ 1, *content[-4:]])
    broken = {"truncated": content[: len(content) // 2], "no gzip": b"x" * 99, "bit": flipped}
    with pytest.raises(DamagedDataError, match="download it again"):
        imported(folder, "lr/31/avg", broken[damage])
    assert not [*(folder / "tables").glob("*.json")]


def test_a_small_file_takes_no_time_or_memory_out_of_proportion(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", str(8 << 16))
    rows = made_rows()
    head = gzip.decompress(csv_of(rows[:1]))
    long_row = gzip.compress(head.partition(b"\n")[0] + b"\n" + b"0" * (1 << 23))
    with pytest.raises(DamagedDataError, match="characters"):
        imported(folder, "lr/31/avg", long_row)
    empty = gzip.decompress(csv_of(rows[:1], ["{'val_avg_loss': []}"])).splitlines(keepends=True)
    with pytest.raises(TooLargeError, match="bytes would take"):
        imported(folder, "lr/31/avg", gzip.compress(empty[0] + empty[1] * 50_000))


@pytest.mark.parametrize(
    "name", ["../evil/a/b/tabular.csv.gz", "/lr/31/avg/tabular.csv.gz", "..\\x"]
)
def test_no_member_leaves_the_archive(folder: Path, name: str) -> None:
    path = write_zip(folder / "a.zip", "lr/31/avg", csv_of(made_rows()))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"")
    with pytest.raises(InvalidArgumentError, match="below one folder"):
        find_archives(path)


@pytest.mark.parametrize(
    ("place", "changes", "words"),
    [
        ("lr/99/avg", {}, "lr/31"),
        ("lr/31/adam", {}, "avg"),
        ("lr/31/avg", {"sead": (1.0,)}, "Did you mean 'seed'"),
        ("lr/31/avg", {"layer": (1.0, 2.0)}, "does not search 'model_depth'"),
        ("lr/31/avg", {"seed": (1.0, 4.0)}, "seeds among"),
        ("gcn/cora/prox", {}, "lacks.*mu"),
    ],
)
def test_what_has_no_place_here_is_refused_by_name(
    folder: Path, place: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FedHPOError, match=words):
        imported(folder, place, csv_of(made_rows({**GRID, **changes}, entries=2)))


def test_equal_courses_are_refused(folder: Path) -> None:
    rows = made_rows(entries=2)
    with pytest.raises(InvalidArgumentError, match="each course once"):
        imported(folder, "lr/31/avg", csv_of([*rows, rows[3]]))


def test_the_command_names_what_it_refuses_and_imports_the_rest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("lr/31/avg", "lr/99/avg"):
        path = folder / "data" / place
        path.mkdir(parents=True)
        (path / "tabular.csv.gz").write_bytes(csv_of(made_rows(entries=2)))
    assert cli.main(["import", str(folder / "data")]) == 1
    said = capsys.readouterr()
    assert said.out.endswith("LR-CreditG-fedavg-fedhpo-bench.table.json\n")
    assert "lr/99" in said.err


@pytest.mark.slow
def test_reading_keeps_the_codes_of_rows_and_nothing_else(folder: Path) -> None:
    """Memory is a constant and about two kilobytes a row, however long its text is."""
    peaks = []
    for entries in (20, 200):
        path = write_zip(folder / f"{entries}.zip", "lr/31/avg", csv_of(made_rows(entries=entries)))
        [archive] = find_archives(path)
        tracemalloc.start()
        gather(read_bench_archive(archive))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    rows = len(made_rows(entries=1))
    assert (
        peaks[1]
        < peaks[0] + 8 * len(result_of(made_rows(entries=200)[0]))
        < 2_000_000 + 3_000 * rows
    )
