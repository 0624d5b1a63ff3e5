"""System metrics as LEAF counts them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.systems.leaf import StatRow, SysRow, local_computations, write_metrics


def test_operations_by_hand() -> None:
    # Two epochs of 25 samples in minibatches of 10: two whole ones each, the five left over do not
    # count.
    assert local_computations(2, 25, 10, 7.0) == 2 * 2 * 10 * 7
    assert local_computations(3, 9, 10, 7.0) == 0
    for arguments in ((-1, 5, 1, 1.0), (1, -5, 1, 1.0), (1, 5, 0, 1.0), (1, 5, 1, -1.0)):
        with pytest.raises(InvalidArgumentError):
            local_computations(*arguments)


def test_both_files_have_leafs_columns(tmp_path: Path) -> None:
    common = {"client_id": "f0001_41", "round_number": 3, "num_samples": 25}
    paths = write_metrics(
        tmp_path / "new",
        [StatRow(**common, set="test", accuracy=0.5, loss=1.25)],
        [SysRow(**common, bytes_written=400, bytes_read=800, local_computations=280.0)],
    )
    assert [path.name for path in paths] == ["metrics_stat.csv", "metrics_sys.csv"]
    rows = [list(csv.reader(path.read_text(encoding="utf-8").splitlines())) for path in paths]
    first = ["client_id", "round_number", "hierarchy", "num_samples", "set"]
    assert rows[0] == [
        [*first, "accuracy", "loss"],
        ["f0001_41", "3", "", "25", "test", "0.5", "1.25"],
    ]
    assert rows[1] == [
        [*first, "bytes_written", "bytes_read", "local_computations"],
        ["f0001_41", "3", "", "25", "train", "400", "800", "280.0"],
    ]
