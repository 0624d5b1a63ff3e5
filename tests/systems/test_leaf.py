"""System metrics as LEAF counts them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.systems.leaf import (
    StatRow,
    SysRow,
    local_computations,
    stat_rows,
    sys_rows,
    write_metrics,
)


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


def test_rows_of_a_round() -> None:
    rows = sys_rows(
        [25, 0, 9],
        first_round=4,
        epochs=2,
        batch_size=10,
        flops_per_sample=7.0,
        message_bytes=(100.0, 400.0),
    )
    assert [(row.client_id, row.round_number, row.num_samples) for row in rows] == [
        ("0", 4, 25),
        ("2", 4, 9),
    ]
    assert [row.local_computations for row in rows] == [280.0, 0.0]
    assert {(row.bytes_written, row.bytes_read) for row in rows} == {(100.0, 400.0)}


def test_rows_of_a_model() -> None:
    metrics = np.arange(2 * 2 * 3 * 3, dtype=float).reshape(2, 2, 3, 3)
    samples = np.arange(2 * 2 * 3).reshape(2, 2, 3)
    fidelity, seeds = Fidelity(9, 1.0), (1, 5)
    best_round, diverged = np.array([3, 7]), np.zeros(2, np.bool_)
    best = Evaluation(metrics, None, samples, best_round, diverged, seeds, fidelity)
    rows = stat_rows(best, 5)
    # Seed 5 is the second; losses and accuracies are the first two metrics, test the third split.
    assert [(row.set, row.client_id, row.loss, row.accuracy) for row in rows] == [
        ("train", "0", 18.0, 19.0),
        ("train", "1", 27.0, 28.0),
        ("test", "0", 24.0, 25.0),
        ("test", "1", 33.0, 34.0),
    ]
    assert [row.num_samples for row in rows] == [6, 9, 8, 11]
    assert {row.round_number for row in rows} == {7}
    last = Evaluation(metrics, 2 * metrics, samples, best_round, diverged, seeds, fidelity)
    assert (stat_rows(last, 5)[0].loss, stat_rows(last, 5)[0].round_number) == (36.0, 9)
    with pytest.raises(InvalidArgumentError, match="`seed` must be one of"):
        stat_rows(best, 2)
