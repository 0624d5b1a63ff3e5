"""The results of a unit are those that were stored, or they are refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, TooLargeError
from fedhpo_gym.core.files import ENV_VAR

pytest.importorskip("torch")

from fedhpo_gym.building.design import UnitShape, read_unit, write_unit
from fedhpo_gym.building.sample import MOST_POINTS, SampleDesign
from fedhpo_gym.tasks import get_task

NAME = "points-3_5"
SHAPE = UnitShape(3, (1, 4), (5, 3, 3))


def made() -> dict[str, NDArray[Any]]:
    return {
        "metrics": np.linspace(0.0, 1.0, 3 * 2 * 45, dtype=np.float32).reshape(3, 2, 5, 3, 3),
        "rounds": np.array([1, 4]),
        "diverged_at": np.array([0, 4, 0]),
        "hardware": np.array("a machine"),
    }


def test_a_unit_comes_back(tmp_path: Path) -> None:
    write_unit(tmp_path, NAME, made())
    found = read_unit(tmp_path, NAME, SHAPE)
    for name, array in made().items():
        np.testing.assert_array_equal(found[name], array)


def test_a_unit_under_another_name_is_refused(tmp_path: Path) -> None:
    write_unit(tmp_path, NAME, made())
    (tmp_path / f"{NAME}.npz").rename(tmp_path / "points-0_2.npz")
    with pytest.raises(DamagedDataError, match="not that of the results of unit 'points-0_2'"):
        read_unit(tmp_path, "points-0_2", SHAPE)


def test_a_unit_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unit(tmp_path, NAME, made())
    monkeypatch.setenv(ENV_VAR, "1000")
    with pytest.raises(TooLargeError, match="1,000 may be read"):
        read_unit(tmp_path, NAME, SHAPE)


@pytest.mark.parametrize(
    "stem",
    [
        "points-",
        "points-x",
        "points-03",
        "points-5_3",
        "points-3-3",
        "points-1_2_3",
        "points-0_9999999999",
        "points-0_5999-7000_12999",
        f"points-{'9' * 100}",
        f"points-0_{MOST_POINTS}",
    ],
)
def test_a_name_stands_for_few_points_or_for_none(stem: str, tmp_path: Path) -> None:
    design = SampleDesign(get_task("LR-CreditG-v0"), 10, 6)
    (tmp_path / f"{stem}.npz").touch()
    tracemalloc.start()
    assert design.finished(tmp_path) == {}
    assert design.stored(tmp_path) == {stem: 0}
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    with pytest.raises(DamagedDataError, match="is damaged"):
        design.read(tmp_path, stem, 0)
