"""HPO-B's files: archives written in its schema, surrogates of XGBoost, and natural units."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, FedHPOError, MissingDataError, TooLargeError
from fedhpo_gym.transfer import HPOBHandler
from fedhpo_gym.transfer.source import DESCRIPTORS, INITIAL, STATISTICS, BoostedTrees, HPOBFiles

TABLES: Any = {
    "7": {
        "é {1": {"X": [[0.0, 0.25], [1, 0.5]], "y": [[0.5], [0.75]]},
        "2": {"X": [[0.5, 0.5]] * 6, "y": [[0.1 * row] for row in range(6)]},
    },
    "8": {"2": {"X": [[1e-3]], "y": [1.0]}},
}
XGBOOST = Path(__file__).with_name("xgboost-1.7.json")
"""Six trees on made-up data, as XGBoost 1.7.6 saved them, and what it predicts with them."""
POINTS = np.array([[0.1, 0.2, 0.3], [0.9, 0.8, 0.7], [0.55, 0.5, 0.95], [0.6, np.nan, 0.4]])
PREDICTED = np.float32([0.61190104, -0.08939648, 0.30752757, -0.45909774])


def files(folder: Path, text: str = json.dumps(TABLES, ensure_ascii=False)) -> HPOBFiles:
    """Write test tasks as HPO-B does, the first with a surrogate."""
    for name, said in {
        "meta-test-dataset.json": text,
        INITIAL: json.dumps({"7": {"2": {"test0": [4, 0, 1, 2, 3]}}}),
        STATISTICS: json.dumps({"surrogate-7-2": {"y_min": 0.0, "y_max": 2.0}}),
        "surrogate-7-2.json": XGBOOST.read_text(encoding="utf-8"),
    }.items():
        (folder / name).write_text(said, encoding="utf-8")
    return HPOBFiles(folder, folder)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 24])
@pytest.mark.parametrize("indent", [None, 2])
def test_archives_say_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr("fedhpo_gym.transfer.source._CHUNK", chunk)
    source = files(tmp_path, json.dumps(TABLES, indent=indent, ensure_ascii=False))
    assert source.search_spaces("test") == ("7", "8")
    assert [source.datasets(space, "test") for space in "789"] == [("é {1", "2"), ("2",), ()]
    for space, tables in TABLES.items():
        for dataset, entry in tables.items():
            x, y = source.table(space, dataset, "test")
            assert x.tolist() == entry["X"]
            assert y.tolist() == np.ravel(entry["y"]).tolist()


def test_the_handler_reads_what_is_there(tmp_path: Path) -> None:
    files(tmp_path)
    handler = HPOBHandler(tmp_path, surrogates_dir=tmp_path)
    assert handler.meta_test_data["7"]["2"] == TABLES["7"]["2"]
    assert handler.bo_initializations["7"]["2"] == {"test0": [4, 0, 1, 2, 3]}
    assert handler.surrogates_stats == {"surrogate-7-2": {"y_min": 0.0, "y_max": 2.0}}
    assert handler.search_space_dims == {"7": 2, "8": 1}
    source = HPOBFiles(tmp_path, tmp_path)
    (tmp_path / "surrogate-8-2.json").write_text("{}", encoding="utf-8")
    assert source.surrogate("8", "2") is source.surrogate("7/..", "2") is None
    assert source.initial("8", "2") == {}


def test_only_the_data_set_that_is_asked_for_is_decoded(tmp_path: Path) -> None:
    source = files(tmp_path, json.dumps(TABLES).replace("0.001", "oops"))
    assert len(source.table("7", "2", "test")[0]) == 6
    with pytest.raises(DamagedDataError, match=r"meta-test-dataset.json is no file of HPO-B"):
        source.table("8", "2", "test")
    with pytest.raises(MissingDataError, match=r"meta-train-dataset.json cannot .*hpo-data"):
        source.search_spaces("train")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", json.dumps(TABLES)[:-1], '{"a": {"b": {"c": {}}}}', "{" * 4 + "}" * 4),
        *('{"\\"": {"7": {}}}', f'{{"{"a" * 999}": {{}}}}', '{"7": {"2": [1]}}'),
        *(
            f'{{"7": {{"2": {{"X": {x}, "y": [1]}}}}}}'
            for x in ("[[1], [2]]", "[]", "[[NaN]]", "[[", '[["x"]]', "[1]")
        ),
    ],
)
def test_damaged_archives_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(FedHPOError, match=r"meta-test-dataset|'2'"):
        files(tmp_path, text).table("7", "2", "test")


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = files(tmp_path)
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", "4000")
    assert len(source.table("8", "2", "test")[0]) == 1
    with pytest.raises(TooLargeError, match="FEDHPO_GYM_MAX_BYTES"):
        source.table("7", "2", "test")
    with pytest.raises(TooLargeError, match="FEDHPO_GYM_MAX_BYTES"):
        BoostedTrees(XGBOOST, 0.0, 1.0)(POINTS)


def test_trees_say_what_xgboost_says_bit_by_bit() -> None:
    found = BoostedTrees(XGBOOST, 0.0, 1.0)(POINTS)
    np.testing.assert_array_equal(found, PREDICTED)
    xgboost = pytest.importorskip("xgboost")
    booster = xgboost.Booster(model_file=str(XGBOOST))
    points = np.random.default_rng(0).random((200, 3))
    expected = booster.predict(xgboost.DMatrix(points))
    np.testing.assert_array_equal(BoostedTrees(XGBOOST, 0.0, 1.0)(points), expected)


def by_hand(**changed: Any) -> dict[str, Any]:
    """Return a model: x1 < 0.5 gives 1, else x0 < 0.25 gives 2, else 4; twice, and 0.5."""
    tree = {
        "left_children": [1, -1, 3, -1, -1],
        "right_children": [2, -1, 4, -1, -1],
        "split_indices": [1, 0, 0, 0, 0],
        "split_conditions": [0.5, 1.0, 0.25, 2.0, 4.0],
        "default_left": [True, False, False, False, False],
        "split_type": [0] * 5,
    }
    settings = {"base_score": "[5E-1]", "num_feature": "2", "num_class": "0"}
    booster = {"name": changed.pop("name", "gbtree"), "model": {"trees": [{**tree, **changed}] * 2}}
    learner = {"gradient_booster": booster, "learner_model_param": settings}
    return {"learner": {**learner, "objective": {"name": "reg:squarederror"}}}


def test_trees_by_hand(tmp_path: Path) -> None:
    path, nan = tmp_path / "model.json", math.nan
    path.write_text(json.dumps(by_hand()), encoding="utf-8")
    points = [[0.9, 0.4], [0.2, 0.5], [0.25, 0.5], [0.2, nan], [nan, 0.7]]
    assert BoostedTrees(path, 0.0, 1.0)(points).tolist() == [2.5, 4.5, 8.5, 2.5, 8.5]
    for changed in (
        *({"name": "dart"}, {"split_type": [1, 0, 0, 0, 0]}, {"left_children": [0, -1, 3, -1, -1]}),
        *({"left_children": [1, -1, 1, -1, -1]}, {"right_children": [2, -1, 9, -1, -1]}),
        *({"split_indices": [2, 0, 0, 0, 0]}, {"default_left": [1]}, {"split_conditions": ["x"]}),
    ):
        path.write_text(json.dumps(by_hand(**changed)), encoding="utf-8")
        with pytest.raises(DamagedDataError, match=r"model.json is no file of HPO-B"):
            BoostedTrees(path, 0.0, 1.0)(points)


def test_natural_units_by_hand(tmp_path: Path) -> None:
    about = {
        "variables": {
            "cost": {"min": math.log(1e-4), "max": math.log(1 + 1e-4)},
            "degree": {"min": 1.0, "max": 5.0},
            "degree.na": {"min": 0.0, "max": 1.0},
            "kernel": {"categories": ["INVALID", "linear", "poly"]},
        },
        "variables_to_apply_log": ["cost"],
        "variables_order": ["cost", "degree", "degree.na"]
        + [f"kernel.ohe._{one}" for one in ("INVALID", "linear", "poly")],
    }
    source = files(tmp_path)
    (tmp_path / DESCRIPTORS).write_text(json.dumps({"7": about}), encoding="utf-8")
    for x, (cost, degree, kernel) in {
        (0.0, 0.25, 0.0, 0.0, 1.0, 0.0): (0.0, 2.0, "linear"),
        (1.0, 0.0, 1.0, 1.0, 0.0, 0.0): (1.0, None, None),
        (0.5, 1.0, 0.4, 0.0, 0.2, 0.3): (math.sqrt(1e-4 * 1.0001) - 1e-4, 5.0, "poly"),
        (0.5, 1.0, 0.0, 0.0, 0.0, 0.0): (math.sqrt(1e-4 * 1.0001) - 1e-4, 5.0, None),
    }.items():
        found = source.decode("7", x)
        assert found == {"cost": pytest.approx(cost), "degree": degree, "kernel": kernel}
    for space, x in (("8", [0.0]), ("7", [0.0])):
        with pytest.raises(FedHPOError, match=r"Unknown search space '8'|`x` must have 6 values"):
            source.decode(space, x)
    for name, odd in (
        ("variables_order", [["cost"]]),
        ("variables_order", {"cost": 1}),
        ("variables_to_apply_log", [["cost"]]),
        ("variables", [[1]]),
        ("variables", {"cost": [1]}),
        ("variables", {"cost": {"min": [0], "max": 1}}),
    ):
        (tmp_path / DESCRIPTORS).write_text(json.dumps({"7": {**about, name: odd}}))
        with pytest.raises(DamagedDataError, match="is no file of HPO-B"):
            files(tmp_path).decode("7", [0.0] * 6)


def test_published_ranges_are_decoded(shared_datasets: Path) -> None:
    folder = shared_datasets / "hpob"
    descriptors = json.loads((folder / DESCRIPTORS).read_text(encoding="utf-8"))
    source = HPOBFiles(folder, folder)
    assert len(descriptors) == 176
    for space, about in descriptors.items():
        ranges = {name: one for name, one in about["variables"].items() if "min" in one}
        absent = {f"{name}.na" for name in ranges}
        for end, before in ((0.0, "min_before_tf"), (1.0, "max_before_tf")):
            x = [end * (one in ranges and one not in absent) for one in about["variables_order"]]
            found = source.decode(space, x)
            expected = {name: ranges[name][before] for name in ranges.keys() - absent}
            if (space, end) == ("3489", 0.0):  # HPO-B took the logarithm of -500 as that of 0
                expected["batch-size"] = 0.0
            got = {name: found[name] for name in expected}
            assert got == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ({"y_min": float("nan"), "y_max": 1.0}, [1, 2]),
        ({"y_min": 0.9, "y_max": 0.2}, [1, 2]),
        ({"y_min": 0.0, "y_max": 1.0}, [1.5, 2]),
        ({"y_min": 0.0, "y_max": 1.0}, [True, 2]),
    ],
)
def test_statistics_and_rows_that_are_none_are_damage(
    tmp_path: Path, ends: dict[str, float], rows: list[Any]
) -> None:
    (tmp_path / "bo-initializations.json").write_text(json.dumps({"10": {"4": {"test0": rows}}}))
    (tmp_path / "summary-stats.json").write_text(json.dumps({"surrogate-10-4": ends}))
    (tmp_path / "surrogate-10-4.json").write_text("{}")
    source = HPOBFiles(tmp_path, tmp_path)

    def both() -> None:
        source.surrogate("10", "4")
        source.initial("10", "4")

    with pytest.raises(DamagedDataError):
        both()
