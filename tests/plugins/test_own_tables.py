"""A table of one's own becomes ids: what is done with it is said, and a task file decides it."""

from __future__ import annotations

import json
import math
import re
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.backends import make_backend
from fedhpo_gym.building.build import build_sample
from fedhpo_gym.building.surrogate_fit import fit_surrogate
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    TooLargeError,
)
from fedhpo_gym.core.files import MAX_BYTES_VARIABLE as MAX_BYTES
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.frames import read_frame
from fedhpo_gym.data.own_table import OwnTable
from fedhpo_gym.stored.lattice import landscape_of
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.own import ENV_VAR, read_task_file, task_files
from stored_files import fit_quickly

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

SHORT: dict[str, Any] = {"fidelity": {"round": 1, "client_sample_rate": 1.0}, "seed": 1}


def made(rows: int = 400, clients: int = 20) -> Any:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "school": [f"S{i}" for i in rng.integers(clients, size=rows)],
            "age": rng.integers(10, 19, size=rows).astype(float),
            "wage": np.exp(rng.normal(8, 2, size=rows)),
            "sex": rng.choice(["F", "M"], size=rows),
            "student": [f"id{i}" for i in range(rows)],
            "one": 1,
        }
    )
    frame["grade"] = frame["age"] + rng.normal(size=rows)
    frame["passed"] = np.where(frame["grade"] > 14, "yes", "no")
    frame.loc[:9, "age"] = np.nan
    return frame


@pytest.mark.slow
def test_an_own_task_is_trained_by_its_id_here_and_in_another_process(
    own_folder: Path, run_python: Callable[..., str]
) -> None:
    task = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed")
    assert "FedHPO-Joint-Passed-v1" in task.ids
    code = """
import gymnasium as gym, fedhpo_gym
env = gym.make("FedHPO-LR-Passed", fidelity={"round": 1, "client_sample_rate": 1.0}, seed=1)
env.reset(seed=0); env.action_space.seed(0)
print(env.step(env.action_space.sample())[-1]["objectives"]["val_loss"])
"""
    env = gym.make("FedHPO-LR-Passed-v1", **SHORT)
    env.reset(seed=0)
    env.action_space.seed(0)
    here = env.step(env.action_space.sample())[-1]["objectives"]["val_loss"]
    there = run_python(code, {ENV_VAR: str(own_folder)})
    assert float(there.splitlines()[-1]) == here
    course = gym.make("FedHPO-DAC-LR-Passed-v1", horizon=5)
    course.reset(seed=0)
    assert math.isfinite(course.step(course.action_space.sample())[1])


def test_what_is_done_with_each_column_is_said_and_stands_in_the_file() -> None:
    task = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed")
    told = "\n".join(task.notes)
    assert "Target 'passed' has 2 classes" in told
    assert "20 clients by 'school'" in told
    assert "Column 'age': 10 numbers are missing" in told
    assert "Column 'student' is left out: it has 400 values in 400 rows" in told
    assert "Column 'one' is left out: it has one value" in told
    assert "WARNING: column 'grade' alone tells 'passed'" in told
    content = tomllib.loads(task.path.read_text(encoding="utf-8"))
    assert content["columns"] == {
        "age": "number",
        "wage": "log",
        "sex": "words",
        "student": "none",
        "one": "none",
        "grade": "number",
    }
    data = load_dataset("Passed")
    # age and whether it is missing, wage, two words, grade.
    assert data.features.shape == (400, 6)
    np.testing.assert_allclose(data.features[:, 2], np.log1p(made()["wage"]), atol=1e-6)
    assert np.isnan(data.features[:10, 0]).all()
    assert (data.features[:, 1] == np.isnan(data.features[:, 0])).all()
    np.testing.assert_array_equal(data.labels, (made()["passed"] == "yes").astype(int))
    found = get_task("LR-Passed-v1")
    shares = np.bincount(data.labels) / 400
    assert found.label_entropy == pytest.approx(-(shares * np.log(shares)).sum())
    assert (found.num_features, found.num_clients, found.num_parameters) == (6, 20, 14)


def test_a_changed_file_changes_ids_with_its_version() -> None:
    path = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    text = path.read_text(encoding="utf-8")
    for old, new in (
        ('"grade" = "number"', '"grade" = "none"'),
        ("version = 1", "version = 2"),
        ("learning_rate = { low = 0.01, high = 30.0", "learning_rate = { low = 0.1, high = 1.0"),
        ("client_sample_rates = [0.1", "client_sample_rates = [0.5"),
        ('split = "60/20/20"', 'split = "80/10/10"'),
    ):
        assert text.count(old) >= 1
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    assert fedhpo_gym.register_task_file(path)[0] == "FedHPO-LR-Passed-v2"
    task = get_task("LR-Passed")
    assert task.version == 2
    assert task.num_features == 5
    assert (task.space["learning_rate"].low, task.space["learning_rate"].high) == (0.1, 1.0)
    assert task.fidelity_space["client_sample_rate"].low == 0.5
    assert task.partition == "user-80-10-10"
    assert get_task("LR-PassedUnseen").partition == "unseen"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('data = "Passed.csv"', 'data = "../Passed.csv"', "`data` must be the name of a .csv file"),
        ('data = "Passed.csv"', 'data = "/etc/passwd"', "`data` must be the name of a .csv file"),
        ('data = "Passed.csv"', 'data = "P.csv.gz"', "`data` must be the name of a .csv file"),
        ('target = "passed"', "", "must be given 'target'"),
        ('target = "passed"', 'target = "school"', "must be another column than `client`"),
        ('name = "Passed"', 'name = "pas/sed"', "`name` must be a capital letter"),
        ('name = "Passed"', 'name = "Tuna"', "must be none of this package, got 'Tuna'"),
        ('kind = "table"', 'kind = "program"', "Unknown kind of task file 'program'"),
        ('"sex" = "words"', '"sex" = "hash"', "Unknown encoding of the column 'sex' 'hash'"),
        ("[space.MLP]", "[space.CNN]", "Unknown model of `space` 'CNN'"),
        ("version = 1", "version = 0", "`version` must be at least 1"),
        ("fewest = 1", "clients = 5\nfewest = 1", "either `client` must name a column or"),
        ("rare = 8", "rares = 8", "Unknown entry of a task file 'rares'. Did you mean 'rare'?"),
        ('"age" = "number"', '"passed" = "words"', "must name neither the target nor the client"),
        ('"age" = "number"', '"school" = "words"', "must name neither the target nor the client"),
        ("rare = 8", "round = 8", "Unknown entry of a task file 'round'. Did you mean 'rounds'?"),
        ("version = 1", "version 1", "Expected '='"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_import_goes_on(
    old: str, new: str, words: str, run_python: Callable[..., str]
) -> None:
    path = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    text = path.read_text(encoding="utf-8").replace(f"{old}  #", f"{new}  #")
    path.write_text(text.replace(f"\n{old}\n", f"\n{new}\n"), encoding="utf-8")
    with pytest.raises(InvalidArgumentError) as refused:
        read_task_file(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    if "passwd" in new:
        code = """
import warnings
with warnings.catch_warnings(record=True) as told:
    import fedhpo_gym
print(told[0].message)
"""
        assert words in run_python(code, {ENV_VAR: str(path.parent)})


def test_changed_data_are_refused_and_the_error_says_what_to_do() -> None:
    path = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    copy = path.with_suffix(".csv")
    copy.write_text(copy.read_text(encoding="utf-8").replace("yes", "no", 1), encoding="utf-8")
    load_dataset.cache_clear()
    with pytest.raises(DamagedDataError, match="was made for another; correct"):
        get_task("LR-Passed")
    copy.unlink()
    with pytest.raises(DamagedDataError, match="is missing"):
        load_dataset("Passed")


@pytest.mark.parametrize(("rows", "clients"), [(60, 3), (3_000, 2_500)])
def test_few_or_thousands_of_clients_and_clients_of_one_row_train(rows: int, clients: int) -> None:
    frame = made(rows, clients)
    task = fedhpo_gym.new_task(frame, "passed", client="school", name="Many")
    few = int((frame["school"].value_counts() < 3).sum())
    assert any("fewer than 3 rows" in note for note in task.notes) == (few > 0)
    rate = get_task("LR-Many").fidelity_space["client_sample_rate"]
    assert rate.high * get_task("LR-Many").num_clients <= 220
    env = gym.make(
        "FedHPO-LR-Many-v1", fidelity={"round": 1, "client_sample_rate": rate.high}, seed=1
    )
    env.reset(seed=0)
    assert math.isfinite(env.step(env.action_space.sample())[1])
    assert any(one.endswith("LR-ManyUnseen-v1") for one in task.ids) == (clients >= 5)


def test_an_import_reads_task_files_up_to_a_bound(own_folder: Path) -> None:
    own_folder.mkdir()
    large = "#" * (1 << 19)
    for number in range(6):
        (own_folder / f"Large{number}.toml").write_text(large)
    (own_folder / "Larger.toml").write_text(large + "#")
    with pytest.warns(
        UserWarning, match=r"files from .*Large4.toml on are left out.*register_task"
    ):
        assert [path.name for path in task_files()] == [f"Large{n}.toml" for n in range(4)]
    for number in (4, 5):
        (own_folder / f"Large{number}.toml").unlink()
    assert len([*task_files()]) == 5, "what is refused for its size takes no time"


def test_rows_without_clients_are_dealt(own_folder: Path) -> None:
    frame = made(900).drop(columns="school")
    task = fedhpo_gym.new_task(frame, "passed", clients=4, alpha=0.7, name="Dealt")
    assert not any("Unseen" in one for one in task.ids)
    found = get_task("LR-Dealt")
    assert (found.partition, found.num_clients, found.alpha) == ("lda", 4, 0.7)
    env = gym.make("FedHPO-LR-Dealt-v1", **SHORT)
    env.reset(seed=0)
    assert math.isfinite(env.step(env.action_space.sample())[1])
    with pytest.raises(InvalidArgumentError, match="`clients` must be fewer than 9"):
        fedhpo_gym.new_task(frame, "passed", clients=9, name="Other")
    assert not [*own_folder.glob("Other*")]


def test_every_form_of_the_same_data_is_the_same_data(tmp_path: Path) -> None:
    """CSV, Parquet, a DataFrame, arrays, LEAF's json and a data set of Hugging Face on disk."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).round(3), rng.integers(2, size=60)
    who = np.repeat(["a", "b", "c"], 20)
    frame = read_frame((x, y, who))
    frame.to_csv(tmp_path / "own.csv", index=False)
    users = {
        name: {"x": x[who == name].tolist(), "y": y[who == name].tolist()}
        for name in ("a", "b", "c")
    }
    content = {"users": [*users], "num_samples": [20, 20, 20], "user_data": users}
    (tmp_path / "all_data.json").write_text(json.dumps(content), encoding="utf-8")
    forms = [tmp_path / "own.csv", frame, (x, y, who), tmp_path / "all_data.json"]
    pyarrow = pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "own.parquet")
    table = pyarrow.table(
        {"x": x.tolist(), "label": pyarrow.array(y), "client": pyarrow.array(who.tolist())}
    )
    split = tmp_path / "saved" / "train"
    split.mkdir(parents=True)
    with pyarrow.ipc.new_stream(split / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    (split / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    forms += [tmp_path / "own.parquet", tmp_path / "saved"]
    digests = {
        fedhpo_gym.new_task(form, name="Own", overwrite=True).path.with_suffix(".csv").read_text()
        for form in forms
    }
    assert len(digests) == 1
    for name, again in (
        ("../data.arrow", ""),
        ("other.arrow", ""),
        ("data.arrow", ', {"filename": "data.arrow"}'),
    ):
        files = f'{{"_data_files": [{{"filename": "{name}"}}{again}]}}'
        (split / "state.json").write_text(files)
        with pytest.raises(DamagedDataError, match=r"others beside it|is missing|each once, got 2"):
            read_frame(tmp_path / "saved")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(DamagedDataError, match=r"state.json is missing"):
        read_frame(tmp_path / "saved")


def test_words_of_a_task_file_become_columns_in_proportion_to_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = range(4000)
    words = {"word": [f"w{row // 2}" for row in rows], "x": [row % 7 for row in rows]}
    frame = pandas.DataFrame({**words, "passed": [0, 1] * 2000})
    task = fedhpo_gym.new_task(frame, "passed", clients=5, name="Words")
    text = task.path.read_text(encoding="utf-8")
    task.path.write_text(re.sub("(?m)^rare = .*", "rare = 1", text).replace('"none"', '"words"'))
    fedhpo_gym.register_task_file(task.path)
    monkeypatch.setenv(MAX_BYTES, "800000")
    with pytest.raises(TooLargeError, match=r"Words.csv of .* bytes would take"):
        load_dataset("Words")


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (
            {},
            {"target": "pased"},
            "must be a column of the data, got 'pased'. Did you mean 'passed'",
        ),
        (
            {},
            {"target": "wage"},
            "must have 2 to 100 classes, at most 20 where they are real numbers",
        ),
        ({"passed": "yes"}, {}, "must have at least two values, got 1 of 'passed'"),
        ({"school": "S1"}, {}, "must say of two clients at least, got 1 in 'school'"),
        ({}, {"leave_out": ["grad"]}, "Unknown column 'grad'"),
        ({}, {"name": "a b"}, "`name` must be a capital letter"),
        ({}, {"split": "50/50"}, "Unknown split '50/50'"),
        ({}, {"client": None}, "`client` must name the column with the client of each row, or"),
        ({}, {"alpha": 0.1}, "`alpha` must be left out where `client` names a column, got 0.1"),
        (
            {},
            {"client": None, "clients": 3, "split": "80/10/10"},
            "`split` must be left out where `client` names none, got 80/10/10",
        ),
        ({}, {"name": "PassedUnseen"}, "and not end in 'Unseen', got 'PassedUnseen'"),
        ({"school": range(400)}, {}, "a client with 3 rows at least, or nothing is validated"),
        (
            {"age": 1, "wage": 1, "sex": 1, "grade": 1},
            {},
            "must have a column to learn from, besides target and client, got none. Column 'age'",
        ),
        ({}, {"colour": 1}, "new_task takes no argument 'colour'"),
        ({}, {"clients": 3}, "`clients` must be left out where `client` names a column"),
        ({}, {"leave_out": ["passed"]}, "Unknown column 'passed'"),
        ({"wage": [np.inf, *range(399)]}, {}, "must have finite numbers in 'wage'"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    change: dict[str, Any], options: dict[str, Any], words: str, own_folder: Path
) -> None:
    frame = made().assign(**change)
    arguments = {"target": "passed", "client": "school", "name": "Passed", **options}
    with pytest.raises(FedHPOError) as refused:
        fedhpo_gym.new_task(frame, **arguments)
    assert words in str(refused.value)
    assert not [*own_folder.glob("*")]


def test_a_name_is_given_once_and_missing_files_are_named(tmp_path: Path) -> None:
    fedhpo_gym.new_task(made(), "passed", client="school", name="Passed")
    with pytest.raises(InvalidArgumentError, match="`name` must be new"):
        fedhpo_gym.new_task(made(), "passed", client="school", name="Passed")
    with pytest.raises(MissingDataError, match="give a CSV or Parquet file"):
        fedhpo_gym.new_task(tmp_path / "no.csv", "passed")


def test_cells_of_a_csv_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a, b,c,d\n01,0.1,3,true\n1,2.675e-3,4,\n", encoding="utf-8")
    frame = read_frame(tmp_path / "a.csv")
    assert frame["a"].tolist() == ["01", "1"]
    assert frame["b"].tolist() == [0.1, 2.675e-3]
    assert frame["c"].tolist() == [3, 4]
    assert frame["d"].tolist()[0] == "true"


def test_a_csv_of_another_kind_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for content, words in (
        (b"a;b\n1,5;2\n", "must have commas between cells, got ';'"),
        (b"a,b\n1,2,3\n4,5,6\n", "must have as many cells in each row as columns"),
        ("name,b\né,2\n".encode("latin-1"), "must be text in UTF-8"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(DamagedDataError, match=f"{words}.*give the data frame"):
            read_frame(tmp_path / "a.csv")


def test_dates_are_days() -> None:
    frame = made().assign(born=pandas.date_range("1999-12-31 18:00", periods=400))
    frame["seen"] = ["2026-02-30" if i == 7 else f"2026-02-{i % 28 + 1:02}" for i in range(400)]
    frame.loc[3, "born"] = pandas.NaT
    task = fedhpo_gym.new_task(frame, "passed", client="school", name="Dated")
    assert "Column 'born': dates are days since 1970." in task.notes
    columns = tomllib.loads(task.path.read_text(encoding="utf-8"))["columns"]
    assert (columns["born"], columns["seen"]) == ("date", "words")  # there is no such day
    born = load_dataset("Dated").features[:, 6]
    assert (born[1], born[2] - born[0]) == (10_957.75, 2.0)
    assert np.flatnonzero(np.isnan(born)).tolist() == [3]
    text = task.path.read_text(encoding="utf-8").replace('"seen" = "words"', '"seen" = "date"')
    task.path.write_text(text, encoding="utf-8")
    fedhpo_gym.register_task_file(task.path)
    with pytest.raises(DamagedDataError, match=r"not what 'date' needs.*2026-02-30"):
        load_dataset("Dated")


def test_what_words_may_have_been_meant_to_be_is_said() -> None:
    frame = made().assign(id=range(400), dose=[f"{i % 7}.5" for i in range(400)])
    frame.loc[5, "dose"] = "<0.1"
    frame["seen"] = [f"{i % 28 + 1}.02.2026" for i in range(400)]
    notes = "\n".join(fedhpo_gym.new_task(frame, "passed", client="school", name="Odd").notes)
    assert "1 of 400 cells are no numbers, such as '<0.1' in row 6" in notes
    assert "dates, such as '1.02.2026', must all be as 2026-05-31 and before 2262" in notes
    assert "Column 'id': its whole numbers are all different" in notes


def test_any_words_survive_the_file() -> None:
    """Names of columns are the user's, quotes and backslashes too; unprintable ones are refused."""
    odd = 'a "b" \\ c é 数 😀'
    frame = made().rename(columns={"school": odd + "1", "age": odd, "passed": odd + "2"})
    task = fedhpo_gym.new_task(frame, odd + "2", client=odd + "1", name="Odd")
    content = tomllib.loads(task.path.read_text(encoding="utf-8"))
    assert (content["client"], content["target"]) == (odd + "1", odd + "2")
    assert content["columns"][odd] == "number"
    assert load_dataset("Odd").features.shape[0] == 400
    for name in ("", "a\rb", "a\U000e0001"):
        with pytest.raises(InvalidArgumentError, match="different, printable names"):
            read_frame(made().rename(columns={"age": name}))
    half = pandas.Series(["a", "\ud800"] * 200, dtype=object)
    with pytest.raises(InvalidArgumentError, match="must have words in UTF-8: 'utf-8' codec"):
        fedhpo_gym.new_task(made().assign(sex=half), "passed", client="school", name="Half")
    long = made().assign(**{"n" * 200_000: 1, "m" * 400_000: 1})
    with pytest.raises(InvalidArgumentError, match="must fit into a task file: it must have at"):
        fedhpo_gym.new_task(long, "passed", client="school", name="Long")


@pytest.mark.slow
def test_the_command_says_what_to_run_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made().to_csv(tmp_path / "school-data.csv", index=False)
    words = ["new", "school-data.csv", "--client", "school", "--target", "passed"]
    assert main([*words, "--leave-out", "grade"]) == 0
    said = capsys.readouterr().out
    assert "Column 'grade' is left out: as asked." in said
    assert "FedHPO-LR-SchoolData-v1  FedHPO-DAC-LR-SchoolData-v1" in said
    for command in ("compare", "transfer", "build", "surrogate", "difficulty"):
        assert f"fedhpo-gym {command} FedHPO-LR-SchoolData" in said
    assert main(words) == ERROR
    for line in (["list", "SchoolData"], ["show", "FedHPO-LR-SchoolData"]):
        assert main(line) == 0
    out = ["--seeds", "1", "--fidelity", "round=1", "--set", "budget_trials=2", "--out", "runs"]
    with warnings.catch_warnings():
        assert main(["run", "FedHPO-LR-SchoolData", "--agent", "random", *out]) == 0


def test_a_description_is_checked_in_python_too() -> None:
    with pytest.raises(InvalidArgumentError, match="`columns` must be a mapping"):
        OwnTable(name="A", data="a.csv", sha256="", target="t", columns=3, clients=3)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.raw
def test_numbers_of_other_data_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is built: a law of what is stored needs something stored."""
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path / "tables"))
    options = {"target": "passed", "client": "school", "name": "Passed"}
    path = fedhpo_gym.new_task(made(), **options).path
    text = path.read_text(encoding="utf-8")
    space = text[text.index("[space.LR]") : text.index("[space.MLP]")]
    small = "".join(
        f"{name} = {{ low = {low}, high = {high}, log = true, bins = 2 }}\n"
        for name, low, high in (
            ("learning_rate", 0.1, 1.0),
            ("weight_decay", 1e-4, 1e-3),
            ("batch_size", 32, 64),
            ("step_size", 1, 2),
        )
    )
    text = text.replace(space, f"[space.LR]\n{small}\n")
    rounds = "rounds = [1, 3, 6, 13, 25, 50, 75, 100]"
    path.write_text(text.replace(rounds, "rounds = [1, 2]"), encoding="utf-8")
    fedhpo_gym.register_task_file(path)
    assert main(["build", "FedHPO-LR-Passed", "--workers", "1", "--yes"]) == 0
    env = gym.make("FedHPO-LR-Passed-v1")
    assert env.get_wrapper_attr("backend").name == "tabular"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"grade" = "number"', '"grade" = "none"'), encoding="utf-8")
    fedhpo_gym.register_task_file(path)
    with pytest.raises(DamagedDataError, match="were computed from other data"):
        gym.make("FedHPO-LR-Passed-v1", backend="tabular")


@pytest.mark.slow
def test_a_surrogate_of_an_own_task_claims_what_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample is built, and a model fitted."""
    fit_quickly(monkeypatch)
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path / "tables"))
    fedhpo_gym.new_task(made(), "passed", client="school", name="Passed")
    task = get_task("LR-Passed")
    build_sample(task, 240, rounds=13, workers=1, announce=lambda _: None)
    identity = task.surrogate_identities[0]
    card = fit_surrogate(task.identity, candidate="gaussian_process", keep=True, identity=identity)
    land = landscape_of(Surrogate(card))
    assert len(land.rounds) > 1
    assert {*land.rounds} <= {*(task.fidelity_space["round"].values or ())}
    for configuration in land.configurations[:: len(land.configurations) // 50]:
        task.space.validate(configuration)
    make_backend("raw", task).evaluate(*land.optimum())


def test_a_table_that_is_made_again_is_another_at_once() -> None:
    """Nothing that was read before answers for it, in this process either."""
    options = {"target": "passed", "client": "school", "name": "Passed", "overwrite": True}
    losses = []
    for frame in (made(), made().assign(passed=made()["passed"].to_numpy()[::-1])):
        fedhpo_gym.new_task(frame, **options)
        env = gym.make("FedHPO-LR-Passed-v1", **SHORT)
        env.reset(seed=0)
        env.action_space.seed(0)
        losses.append(env.step(env.action_space.sample())[-1]["objectives"]["val_loss"])
    assert losses[0] != losses[1]


def test_words_that_look_like_nothing_are_words_and_long_codes_are_codes(tmp_path: Path) -> None:
    """In a data frame and in a file: nobody's class, and nobody's client, is lost or merged."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "region": rng.choice(["NA", "EU", "null", "AS"], 400),
            "account": rng.choice([10**17 + k for k in range(9)], 400),
            "x": rng.normal(size=400),
            "height": np.where(
                rng.random(400) < 0.05, "?", rng.integers(150, 200, 400).astype(str)
            ),
            "state": rng.choice(["None", "mild", "severe"], 400),
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    for number, form in enumerate((frame, tmp_path / "a.csv")):
        for client, count in (("region", 4), ("account", 9)):
            name = f"A{number}{client}"
            task = fedhpo_gym.new_task(form, "state", client=client, name=name)
            data = load_dataset(name)
            assert (len(data.labels), data.num_classes) == (400, 3)
            assert len(np.unique(data.users)) == count
            assert any(f"{count} clients by" in note for note in task.notes)
    assert read_frame(tmp_path / "a.csv")["height"].isna().sum() == (frame["height"] == "?").sum()


def test_one_name_is_of_one_file_and_an_old_version_does_not_answer_with_new_data() -> None:
    first = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    text = first.read_text(encoding="utf-8")
    other = first.with_name("Other.toml")
    other.write_text(text.replace("version = 1", "version = 2"), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="must be of one task file"):
        fedhpo_gym.register_task_file(other)
    first.write_text(text.replace("version = 1", "version = 2"), encoding="utf-8")
    fedhpo_gym.register_task_file(first)
    with pytest.raises(LookupError):
        get_task("LR-Passed-v1")
    assert "FedHPO-LR-Passed-v2" in gym.registry
    assert not {"FedHPO-LR-Passed-v1", "MO-FedHPO-DAC-LR-Passed-v1"} & {*gym.registry}


@pytest.mark.slow
def test_a_fault_of_one_own_task_keeps_nothing_else_away(
    own_folder: Path, capsys: pytest.CaptureFixture[str], run_python: Callable[..., str]
) -> None:
    path = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    path.with_suffix(".csv").write_text("school,passed\n", encoding="utf-8")
    load_dataset.cache_clear()
    assert main(["list", "Passed"]) == 0
    assert "was made for another" in capsys.readouterr().out
    (own_folder / "Empty.toml").write_text("", encoding="utf-8")
    (own_folder / "Deep.toml").write_text("a = " + "[" * 9_000 + "]" * 9_000, encoding="utf-8")
    code = "import warnings\nwarnings.simplefilter('ignore')\nimport fedhpo_gym\nprint('here')"
    assert run_python(code, {ENV_VAR: str(own_folder)}).strip() == "here"


def test_numbers_of_changed_ranges_and_functions_have_other_fingerprints() -> None:
    from fedhpo_gym.backends import make_backend

    path = fedhpo_gym.new_task(made(), "passed", client="school", name="Passed").path
    found = [make_backend("raw", get_task("LR-Passed")).fingerprint]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("high = 30.0", "high = 20.0", 1), encoding="utf-8")
    fedhpo_gym.register_task_file(path)
    found.append(make_backend("raw", get_task("LR-Passed")).fingerprint)
    assert found[0] != found[1]
