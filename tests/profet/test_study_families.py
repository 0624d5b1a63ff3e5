"""Families of the Profet study: files of others, read and never run."""

import csv
import gzip
import hashlib
import json
import pickle
import sys
import tarfile
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from profet_families import FC_TABLE, FC_TASKS, XGBOOST, YAHPO_FILES, fc_net, svm, xgboost
from scipy.stats import kendalltau

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError, MissingDependencyError


def made_svm(folder: Path, shift: float = 0.0) -> Path:
    """Write two data sets: accuracies a hundredth of the row's number, and one linear kernel."""
    folder.mkdir()
    grid = [*product(("-0.8333333333333334", str(1.0 - shift)), ("-1.0", "0.75"))]
    for name, one in (("b", grid), ("a", grid if not shift else [*product("01", "01")])):
        rows = [f"0.{i}5 1.0 0.0 0.0 {c} {gamma} 0.0" for i, (c, gamma) in enumerate(one)]
        (folder / name).write_text("\n".join([*rows, "0.99 0.0 0.0 1.0 1.0 0.0 0.0"]) + "\n")
    (folder / "README.md").write_text("no data")
    return folder


def test_svm_of_a_folder_and_of_its_archive(tmp_path: Path) -> None:
    folder = made_svm(tmp_path / "svm")
    with tarfile.open(tmp_path / "svm.tar.xz", "w:xz") as archive:
        archive.add(folder, "data/svm")
    found = svm(folder)
    assert found.tasks == ("a", "b")
    np.testing.assert_allclose(found.x, [[0, 0], [0, 1], [1, 0], [1, 1]], atol=1e-12)
    np.testing.assert_allclose(found.values, [[0.95, 0.85, 0.75, 0.65]] * 2)
    np.testing.assert_array_equal(svm(tmp_path / "svm.tar.xz").values, found.values)


def test_svm_refuses_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="wistuba/TST"):
        svm(tmp_path / "nothing")
    with pytest.raises(DamagedDataError, match="b has other configurations than a"):
        svm(made_svm(tmp_path / "svm", shift=0.5))


def written_tables(folder: Path) -> Path:
    """Write four tables whose value names the cell, and the run by a fraction."""
    number = np.arange(FC_TABLE.grid_size, dtype=np.float64)[:, None] + [0.0, 0.1, 0.2, 0.3]
    for i, task in enumerate(FC_TASKS):
        held = {"valid_mse": (number + 1.0).ravel(), "runtime": (2.0 + i + number).ravel()}
        (folder / f"{task}.pkl").write_bytes(pickle.dumps(held, protocol=4))
    return folder


def test_fc_net_finds_the_cells_of_its_points(tmp_path: Path) -> None:
    found = fc_net(written_tables(tmp_path), points=40)
    orders = [sorted(map(str, d.grid)) for d in FC_TABLE.dimensions]
    strides = np.cumprod([1, *[len(order) for order in orders[:0:-1]]])[::-1]
    for x, value, cost in zip(found.x, found.values[2], found.costs[2], strict=True):
        words = [
            str(d.grid[round(at * (len(d.grid) - 1))])
            for at, d in zip(x, FC_TABLE.dimensions, strict=True)
        ]
        cell = sum(o.index(w) * s for o, w, s in zip(orders, words, strides, strict=True))
        assert value == pytest.approx(cell + 1.15)
        assert cost == pytest.approx(cell + 4.15)


class Trap:
    """What a pickle can do when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("trap", "w")


def test_no_code_of_a_table_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (written_tables(tmp_path) / f"{FC_TASKS[0]}.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DamagedDataError, match="valid_mse"):
        fc_net(tmp_path)
    assert not (tmp_path / "trap").exists()


def written_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a folder of two tasks, whose files count as those that are published."""
    codes = {
        "booster": {"#na#": 0, "gbtree": 3},
        "num.impute.selected.cpo": {"#na#": 0, "impute.mean": 2},
        "task_id": {"#na#": 0, "12": 5, "3": 7},
    }
    contents = {"encoding.json": json.dumps(codes).encode(), "model.onnx": b"a model"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(YAHPO_FILES, name, hashlib.sha256(content).hexdigest())
    return folder


def test_what_an_xgboost_model_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Session:
        def __init__(self, content: bytes, *_: object, **__: object) -> None:
            assert content == b"a model"

        def run(self, _: None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            asked.append(given)
            answers = np.zeros((len(given["x_cont"]), 9), np.float32)
            answers[:, 0], answers[:, 6] = given["x_cont"][:, 5], given["x_cont"][:, 0]
            return [answers]

    fake: Any = SimpleNamespace(InferenceSession=Session, SessionOptions=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    found = xgboost(written_model(tmp_path, monkeypatch), points=20)
    assert found.tasks == ("12", "3")
    for code, given in zip((5, 7), asked, strict=True):
        np.testing.assert_array_equal(given["x_cat"], [[code, 3, 2]] * 20)
        np.testing.assert_array_equal(given["x_cont"][:, 8:], [[1, 1, 0, 0, 1, 10]] * 20)
    # Subsample is on a line from .1 to 1, and the rounds are whole.
    np.testing.assert_allclose(found.values, [0.9 - 0.9 * found.x[:, 5]] * 2, atol=1e-6)
    wanted = 6.5 * (2981.5 / 6.5) ** found.x[:, 0]
    np.testing.assert_array_equal(found.costs, [wanted.round()] * 2)
    assert found.space["max_depth"] == XGBOOST["max_depth"]


def test_xgboost_refuses_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDataError, match="slds-lmu/yahpo_data"):
        xgboost(tmp_path)
    folder = written_model(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="pip install onnxruntime"):
        xgboost(folder)
    (folder / "model.onnx").write_bytes(b"another")
    with pytest.raises(DamagedDataError, match=r"model\.onnx is not what it should be: its sha256"):
        xgboost(folder)


def test_xgboost_of_the_published_model(shared_datasets: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = shared_datasets / "yahpo"
    if not (folder / "rbv2_xgboost").is_dir():
        pytest.skip("YAHPO Gym's rbv2_xgboost is not among the data sets")
    found = xgboost(folder / "rbv2_xgboost", points=64)
    assert found.values.shape == (119, 64)
    # The publisher's extremes of what was measured, over more than is asked here.
    with gzip.open(folder / "instance_target_statistics.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["scenario"] == "rbv2_xgboost"]
    said = {(row["instance"], row["metric"], row["statistic"]): float(row["value"]) for row in rows}
    for name, values in (("acc", 1.0 - found.values), ("timetrain", found.costs)):
        low, high = (
            np.array([[said[task, name, end]] for task in found.tasks]) for end in ("min", "max")
        )
        assert ((values >= low - 1e-3) & (values <= high + 1e-3)).mean() > 0.99, name
    slower = [kendalltau(found.x[:, 0], costs).statistic for costs in found.costs]
    assert np.median(slower) > 0.6  # with more trees
