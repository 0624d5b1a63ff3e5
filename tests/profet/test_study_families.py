"""Families of the Profet study: files of others, read and never run."""

import pickle
import tarfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from profet_families import FC_TABLE, FC_TASKS, fc_net, svm

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError


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
