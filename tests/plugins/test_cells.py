"""Cells of a table decide what is a number, whatever the type of their column and its file."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from conftest import REPOSITORY
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.federation import make_user_federation
from fedhpo_gym.data.frames import MISSING_WORDS, read_frame
from fedhpo_gym.data.own_table import _accuracy_bound
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.tasks import get_task

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "tables"))


def people(rows: int = 400, clients: int = 20) -> Any:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"school": np.arange(rows) % clients, "x": rng.normal(size=rows)})
    return frame.assign(passed=np.where(frame["x"] + rng.normal(size=rows) > 0, "yes", "no"))


def courses(**columns: Any) -> Any:
    rows = itertools.product([0.01, 0.1, 1.0], [1, 2], [1, 5, 20])
    frame = pandas.DataFrame(rows, columns=["lr", "depth", "round"])
    frame["val_loss"] = 0.3 + frame["lr"] / 10 + 1 / frame["round"]
    return frame.assign(**columns)


NUMBERS: Any = {
    "decimals": ([Decimal("1.50"), None, Decimal("1E+3"), Decimal("NaN")], [1.5, None, 1e3, None]),
    "fractions": ([Fraction(1, 4), Fraction(3), None], [0.25, 3, None]),
    "signals": ([Decimal("1.50"), Decimal("sNaN")], [1.5, None]),
    "objects": (pandas.Series([1, None, 3], dtype=object), [1, None, 3]),
    "categories": (pandas.Categorical([2, 1, 2]), [2, 1, 2]),
    "missing category": (pandas.Categorical([2, None, 1]), [2, None, 1]),
    "truths": (pandas.Series([True, None, False], dtype=object), [1, None, 0]),
    "nullable": (pandas.array([1, None, 3], dtype="Int64"), [1, None, 3]),
    "words": (["1e-3", "+2", ".5 ", "?", "-7."], [1e-3, 2, 0.5, None, -7]),
    "durations": (pandas.to_timedelta([12, 36, None], unit="h"), [0.5, 1.5, None]),
    "infinity": ([Decimal("Infinity"), Decimal(1)], [np.inf, 1]),
    "fifteen digits": (["123456789012345", "1"], [123456789012345, 1]),
}
WORDS: Any = {
    "underscores": ["1_000", "2", "3"],
    "decimal commas": ["73,8", "1,5"],
    "other digits": ["\u0661", "\u0662"],
    "codes": ["01", "02", "10"],
    "long codes": ["1234567890123456", "1234567890123457"],
    "long and missing": pandas.array([10**17, None, 10**17 + 1], dtype="Int64"),
    "beyond int64": np.array([2**63, 2**63 + 1], np.uint64),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_cells_that_are_all_numbers_are_numbers(name: str) -> None:
    cells, numbers = NUMBERS[name]
    column = read_frame(pandas.DataFrame({"a": cells}))["a"]
    assert column.dtype.kind == ("i" if all(isinstance(x, int) for x in numbers) else "f")
    np.testing.assert_array_equal(column, np.array(numbers, np.float64))


@pytest.mark.parametrize("name", WORDS)
def test_cells_of_which_one_is_no_number_stay_words_to_the_last_digit(name: str) -> None:
    column = read_frame(pandas.DataFrame({"a": WORDS[name]}))["a"]
    cells = [None if pandas.isna(cell) else str(cell) for cell in WORDS[name]]
    assert [None if pandas.isna(cell) else cell for cell in column] == cells


ALIKE: Any = {
    "truths": ([True, False, True], [1, 0, 1]),
    "missing truths": (pandas.array([True, None, False], dtype="boolean"), [1, None, 0]),
    "durations": (pandas.to_timedelta([42, -1, None], unit="h"), [1.75, -1 / 24, None]),
    "days": (pandas.to_timedelta([2, 1, 1], unit="D"), [2, 1, 1]),
    "long": (pandas.to_timedelta([90_123_456_789, 1, 7], unit="ms"), None),
    "microseconds": ([1.6e15 + 0.5, 1.6e15, None], [1.6e15 + 0.5, 1.6e15, None]),
    "blanks": (["1", "", " "], [1, None, None]),
    "blank words": (["a", "", " "], ["a", None, None]),
    "spaces": ([" a", "a", "b "], ["a", "a", "b "]),
    "dates": (["2026-05-31", "n/a", "2026-06-01"], ["2026-05-31", None, "2026-06-01"]),
    "words": (["none", "mild", "n/a"], ["none", "mild", "n/a"]),
    **{f"number or {one}": (["1.5", one, "2"], [1.5, None, 2]) for one in sorted(MISSING_WORDS)},
}


@pytest.mark.parametrize("name", ALIKE)
def test_cells_are_read_alike_in_a_frame_and_in_its_files(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cells, expected = ALIKE[name]
    frame = pandas.DataFrame({"a": cells, "b": 1})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    column = read_frame(frame)["a"]
    for form in ("a.csv", "a.parquet"):
        pandas.testing.assert_series_equal(read_frame(tmp_path / form)["a"], column)
    if expected is not None:
        assert [None if pandas.isna(cell) else cell for cell in column] == expected


def test_missing_cells_are_those_of_pandas_and_what_the_page_names() -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert {*STR_NA_VALUES} - {""} <= MISSING_WORDS
    page = (REPOSITORY / "docs/guides/own_federation.md").read_text(encoding="utf-8")
    assert all(f"`{one}`" in page for one in MISSING_WORDS - STR_NA_VALUES)


def test_decimals_of_files_are_numbers_and_long_codes_are_whole(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    cells, codes = [Decimal("1.10"), None, Decimal("-2.25")], [10**17, None, 10**17 + 1]
    table = pyarrow.table({"a": pyarrow.array(cells, pyarrow.decimal128(9, 2)), "code": codes})
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.ipc.new_stream(tmp_path / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    for form in (tmp_path / "a.parquet", tmp_path, table.to_pandas(types_mapper=pandas.ArrowDtype)):
        np.testing.assert_array_equal(read_frame(form)["a"], [1.1, np.nan, -2.25])
        assert [*read_frame(form)["code"].dropna()] == [str(10**17), str(10**17 + 1)]


def test_rows_that_have_names_keep_them_and_their_cells(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {"who": ["a", "b", "c"], "x": [1.0, np.nan, 3.0], "w": ["u", "v", "w"]}
    )
    frame[1:].to_parquet(tmp_path / "some.parquet")
    frame.set_index("who").to_parquet(tmp_path / "named.parquet")
    assert read_frame(tmp_path / "some.parquet").shape == (2, 3)
    for form in (tmp_path / "named.parquet", frame.set_index("who", drop=False)):
        pandas.testing.assert_frame_equal(read_frame(form), read_frame(frame))


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lr,val_loss, val_loss\n.1,.5,.6\n", encoding="utf-8")
    with pytest.raises(DamagedDataError, match="must have one column 'val_loss', got two"):
        read_frame(tmp_path / "a.csv")
    with pytest.raises(InvalidArgumentError, match="columns of different, printable names"):
        read_frame(pandas.DataFrame({"x": [[1.0, 2.0]], "x1": [3.0]}))
    with pytest.raises(InvalidArgumentError, match="one column of 'loss', got 'val_loss', too"):
        fedhpo_gym.import_results(courses(loss=0.5), "A", 10, clients=3)


def test_cells_between_other_marks_than_commas_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a, x;site;y;val_loss\n1,2;s;0;1\n", encoding="utf-8")
    advice = r"separated by ';': save them with commas, or read them by `pandas.read_csv\(path, sep"
    for options in ({"target": "y", "client": "site"}, {"target": "y", "clients": 3}):
        with pytest.raises(InvalidArgumentError, match=advice):
            fedhpo_gym.new_task(tmp_path / "a.csv", **options)
    for columns in ({}, {"site": "depth"}):
        with pytest.raises(InvalidArgumentError, match=advice):
            fedhpo_gym.import_results(
                tmp_path / "a.csv", "A", 10, clients=3, rounds=1, columns=columns
            )


def test_a_column_of_decimals_and_whole_numbers_is_learned_from() -> None:
    frame = people()
    own = frame.assign(x=[Decimal(repr(x)) for x in frame["x"]], level=np.arange(400) // 10.0)
    own["level"] = own["level"].astype("category")
    notes = fedhpo_gym.new_task(own, "passed", client="school", name="Own").notes
    assert not any("is left out" in note for note in notes)
    features = load_dataset("Own").features
    np.testing.assert_array_equal(features, np.stack([frame["x"], np.arange(400) // 10], axis=1))
    fedhpo_gym.new_task(own, "level", client="school", name="Level")  # whole: codes of classes
    assert load_dataset("Level").num_classes == 40


def test_an_encoding_reads_no_number_that_its_file_does_not_say() -> None:
    frame = people().assign(cost=["1_000", "2_000"] * 200)
    task = fedhpo_gym.new_task(frame, "passed", client="school", name="Own")
    text = task.path.read_text(encoding="utf-8")
    task.path.write_text(text.replace('"cost" = "words"', '"cost" = "number"'), encoding="utf-8")
    fedhpo_gym.register_task_file(task.path)
    with pytest.raises(
        DamagedDataError, match=r"'number' needs: '1_000' is no number. Leave such cells empty"
    ):
        load_dataset("Own")


def test_what_is_missing_is_missing_where_a_task_file_makes_words_numbers() -> None:
    frame = people().assign(cost=["01", "2", "n/a", "4"] * 100)
    task = fedhpo_gym.new_task(frame, "passed", client="school", name="Own")
    text = task.path.read_text(encoding="utf-8")
    task.path.write_text(text.replace('"cost" = "words"', '"cost" = "number"'), encoding="utf-8")
    fedhpo_gym.register_task_file(task.path)
    np.testing.assert_array_equal(load_dataset("Own").features[:4, 1], [1, 2, np.nan, 4])


@pytest.mark.parametrize("cell", ["73,8", "1,234.5", "1_000", "1 000", "5 %", "$5", "n.d.", "<1"])
def test_the_advice_for_other_marks_changes_no_number(cell: str) -> None:
    frame = people().assign(cost=[cell, "7", "8", cell, "9"] * 80)
    notes = "\n".join(fedhpo_gym.new_task(frame, "passed", client="school", name="Own").notes)
    said = (
        f"160 of 400 cells are no numbers, such as {cell!r} in row 1; numbers are written as 1234.5"
    )
    assert said in notes


def test_what_few_rows_differ_in_is_no_column_of_its_own() -> None:
    """Standardised, 0 and 1 of few rows would be a number far away from all others."""
    frame = people(2_000).assign(word=["a"] * 997 + ["b"] * 1_000 + ["c"] * 3, few="m")
    frame.loc[:5, "few"] = "n"
    frame["often"] = frame["rare"] = frame["x"]
    frame.loc[:5, "rare"] = frame.loc[:99, "often"] = np.nan
    task = fedhpo_gym.new_task(frame, "passed", client="school", name="Own")
    notes = "\n".join(task.notes)
    assert "'word': 1 words of fewer than 20 rows have no column" in notes
    assert "'few' is left out: all but 6 rows have one value" in notes
    assert "'rare': 6 numbers are missing, the mean stands there" in notes
    assert "'often': 100 numbers are missing, a column of 0 and 1 says where" in notes
    text = task.path.read_text(encoding="utf-8").replace('"few" = "none"', '"few" = "words"')
    task.path.write_text(text, encoding="utf-8")
    fedhpo_gym.register_task_file(task.path)
    data = load_dataset("Own")
    assert data.features.shape == (2_000, 6)  # x, a, b, often, where it is missing, rare
    assert np.abs(make_user_federation(data, 1, "standardized").features).max() < 7


def test_a_column_that_cannot_tell_the_target_takes_no_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of thousands of columns would take a minute; the trees that are left say the same."""
    from sklearn.tree import DecisionTreeClassifier

    fits: list[int] = []
    fit = DecisionTreeClassifier.fit
    monkeypatch.setattr(
        DecisionTreeClassifier, "fit", lambda *a, **k: fits.append(1) or fit(*a, **k)
    )
    rng = np.random.default_rng(1)
    frame = people().assign(**{f"w{i}": rng.choice([*"abc"], 400) for i in range(9)})
    frame = frame.assign(tells=(frame["passed"] == "yes") * 5 + rng.integers(3, size=400))
    notes = fedhpo_gym.new_task(frame, "passed", client="school", name="Own").notes
    [warning] = [note for note in notes if note.startswith("WARNING")]
    assert "column 'tells' alone tells 'passed' in 100.0%" in warning
    assert len(fits) == 2
    for seed in range(30):
        cells, labels = np.random.default_rng(seed).integers((2 + seed, 3), size=(60, 2)).T
        tree = DecisionTreeClassifier(max_leaf_nodes=8, random_state=0).fit(cells[:, None], labels)
        accuracy = (tree.predict(cells[:, None]) == labels).mean()
        assert accuracy <= _accuracy_bound(cells.astype(np.float32), labels, 8)


def test_clients_of_fewest_rows_stay() -> None:
    frame = people(403)  # three schools of 21 rows, and 17 of 20
    path = fedhpo_gym.new_task(frame, "passed", client="school", name="Own").path
    text = path.read_text(encoding="utf-8")
    for fewest, rows in ((20, 403), (21, 63)):
        path.write_text(text.replace("fewest = 1 ", f"fewest = {fewest} "), encoding="utf-8")
        fedhpo_gym.register_task_file(path)
        load_dataset.cache_clear()
        assert len(load_dataset("Own").labels) == rows


def test_what_compares_clients_is_refused_where_one_alone_is_validated() -> None:
    """Of eight clients one validates the unseen id, of ten two."""
    for clients in (8, 10):
        fedhpo_gym.new_task(people(clients=clients), "passed", client="school", name=f"Of{clients}")
    asked = {"objectives": ["val_loss", "fairness_p10", "fairness_std"], "seed": 1}
    gym.make("MO-FedHPO-LR-Of8-v1", **asked)
    gym.make("MO-FedHPO-LR-Of10Unseen-v1", **asked)
    for constant in ("fairness_std", "fairness_jain"):
        with pytest.raises(
            InvalidArgumentError, match=f"{constant}.*one client alone is validated"
        ):
            gym.make("FedHPO-LR-Of8Unseen-v1", objectives=[constant], seed=1)
    for constant in ("fairness", "fairness_std", "fairness_jain"):
        gym.make("FedHPO-DAC-LR-Of10Unseen-v1", rewards=["improvement", constant])
        with pytest.raises(
            InvalidArgumentError, match=f"{constant}.*one client alone is validated"
        ):
            gym.make("FedHPO-DAC-LR-Of8Unseen-v1", rewards=["improvement", constant])


def test_decimals_and_words_of_numbers_are_hyperparameters_and_losses() -> None:
    plain = courses()
    for kind in (lambda x: Decimal(repr(x)), repr):
        frame = courses(lr=plain["lr"].map(kind), val_loss=plain["val_loss"].map(kind))
        fedhpo_gym.import_results(frame.astype({"depth": "category"}), "Own", 10, clients=3)
        space = get_task("Results-Own").space
        assert [(d.kind, d.log, d.grid) for d in space.dimensions] == [
            ("float", True, (0.01, 0.1, 1.0)),
            ("int", False, (1, 2)),
        ]


def test_whole_numbers_may_be_written_as_real_ones() -> None:
    frame = courses(seed=1.0, client=0.0, val_samples=10.0)
    frame["round"] = frame["round"].astype(float)
    env_id, _ = fedhpo_gym.import_results(frame, "Own", 10, clients=3)
    assert get_task(env_id.removeprefix("FedHPO-")).evaluated_rounds == (1, 5, 20)
    for wrong in (1.5, np.inf, 2.0**53):
        with pytest.raises(InvalidArgumentError, match="whole numbers in 'seed', got"):
            fedhpo_gym.import_results(courses(seed=wrong), "Own", 10, clients=3)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"val_loss": "0,53"},
            "must have numbers in 'val_loss', got '0,53'. Write them as 1234.5.",
        ),
        (
            {"lr": ["0,01", "0,1"] * 9},
            "numbers in 'lr' without marks, got '0,01'. Write them as 1234.5, and words",
        ),
        ({"lr": ["1,5", "15"] * 9}, "numbers in 'lr' without marks, got '1,5'."),
        ({"lr": ["1_000", "2_000"] * 9}, "numbers in 'lr' without marks, got '1_000'."),
        ({"layers": ["64,32", "64"] * 9}, "and words that are no numbers otherwise, such as 64x32"),
        ({"client": "all", "clients": None}, "where no column `client` tells two or more apart"),
        ({"step_size": [-1] * 9 + [1] * 9}, "`space.step_size` must be at least 0, got -1"),
        ({"step_size": ["a"] * 9 + ["b"] * 9}, "`space.step_size` must be a number, at least 0"),
        ({"batch_size": [0] * 9 + [8] * 9}, "`space.batch_size` must be at least 1, got 0"),
    ],
)
def test_cells_that_are_not_what_their_column_needs_are_named(
    columns: dict[str, Any], words: str, own_folder: Path
) -> None:
    clients = columns.pop("clients", 3)
    with pytest.raises(InvalidArgumentError) as refused:
        fedhpo_gym.import_results(courses(**columns), "Own", 10, clients=clients)
    assert words in str(refused.value)
    assert not [*own_folder.glob("*")]


@pytest.mark.parametrize("name", ["pupils.xlsx", "pupils.jsonl"])
def test_tables_of_other_formats_are_refused_by_their_names(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"passed": "no"}\n', encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=rf"another format than .*{name}.*by pandas"):
        read_frame(tmp_path / name)


def test_a_compressed_file_has_the_name_of_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people().to_csv(tmp_path / "pupils.csv.xz", index=False)
    task = fedhpo_gym.new_task(tmp_path / "pupils.csv.xz", "passed", client="school")
    assert task.path.name == "Pupils.toml"
    courses().to_csv(tmp_path / "search.csv.gz", index=False)
    (tmp_path / "search.toml").write_text('name = "Own"\nparameters = 10\nclients = 5\n')
    assert main(["import", "search.csv.gz"]) == 0
    assert capsys.readouterr().out.endswith("FedHPO-Results-Own-v0\n")
