"""The federation that is handed over is that of the task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.tasks import get_task

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.federatedscope.remote_course import hand_over, network_inputs
from fedhpo_gym.backends.training import task_federation


@pytest.mark.parametrize("name", ["LR-BreastCancer-v0", "LR-BreastCancer-v1"])
def test_every_client_gets_its_own_samples(tmp_path: Path, name: str) -> None:
    task = get_task(name)
    federation = task_federation(task, 2)
    path = hand_over(task, 2, tmp_path)
    with np.load(path, allow_pickle=False) as arrays:
        assert int(arrays["num_clients"]) == task.num_clients
        for client, splits in enumerate(federation.clients, start=1):
            for split, rows in zip(SPLITS, splits, strict=True):
                x, y = arrays[f"x_{client}_{split}"], arrays[f"y_{client}_{split}"]
                np.testing.assert_array_equal(x, federation.features[rows])
                np.testing.assert_array_equal(y, federation.labels[rows])
                assert x.dtype == np.float32


def test_what_is_there_is_not_written_again_and_variants_do_not_meet(tmp_path: Path) -> None:
    task = get_task("LR-BreastCancer-v0")
    first = hand_over(task, 1, tmp_path)
    written = first.stat().st_mtime_ns
    assert hand_over(task.variant(algorithm="fedavg"), 1, tmp_path) == first
    assert first.stat().st_mtime_ns == written
    others = {
        hand_over(task, 2, tmp_path),
        hand_over(task.variant(alpha=0.7), 1, tmp_path),
        hand_over(task.variant(preprocessing="standardized"), 1, tmp_path),
    }
    assert len(others | {first}) == 4


def test_images_are_as_a_network_reads_them() -> None:
    grey = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    expected = (np.array([[[[0.0, 1.0], [0.2, 0.4]]]]) - 0.1307) / 0.3081
    np.testing.assert_allclose(network_inputs(grey), expected, rtol=1e-5)
    colours = np.zeros((3, 8, 4, 3), dtype=np.uint8)
    assert network_inputs(colours).shape == (3, 3, 8, 4)
    table = np.array([[1.5, 300.0]])
    np.testing.assert_array_equal(network_inputs(table), table.astype(np.float32))
