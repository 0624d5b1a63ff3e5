"""What is written for FederatedScope, in both layouts of keys, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.federatedscope.backend import hand_over, network_inputs
from fedhpo_gym.backends.federatedscope.configuration import (
    CURRENT,
    FIRST,
    LOCAL,
    course_entries,
    require_layout,
    unsupported,
)
from fedhpo_gym.backends.federatedscope.peer.course import require_unchanged, write_entries
from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.tasks import TASKS, Task, get_task

LAYOUTS = (CURRENT, FIRST)
CAN = [
    task.variant(algorithm=algorithm)
    for task in TASKS.values()
    if task.model in ("LR", "MLP", "CNN", "GNN") and task.version == 1
    for algorithm in ("fedavg", "fedopt", "fedprox")
]


def entries(task: Task, layout: str, **changes: float) -> dict[str, Any]:
    configuration = {**task.space.sample(stream(0, "test")), **changes}
    return course_entries(task, configuration, 0.4, 7, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", CAN, ids=lambda task: f"{task.id}-{task.algorithm}")
def test_every_hyperparameter_is_written_once(task: Task, layout: str) -> None:
    configuration = task.space.sample(stream(1, "test"))
    written = course_entries(task, configuration, 0.4, 7, layout)
    for name, value in configuration.items():
        changed = task.space.sample(stream(2, "test"))[name]
        other = course_entries(task, {**configuration, name: changed}, 0.4, 7, layout)
        different = {key for key in written if written[key] != other[key]}
        assert len(different) == (changed != value), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_course_of_logistic_regression_by_hand(layout: str) -> None:
    task = get_task("LR-CreditG-v1")
    configuration = {"learning_rate": 0.5, "weight_decay": 0.01, "batch_size": 32, "step_size": 2}
    written = course_entries(task, configuration, 0.4, 7, layout)
    local = {LOCAL[layout][name]: value for name, value in configuration.items()}
    assert local.items() <= written.items()
    assert written["federate.sample_client_num"] == 2  # of five
    assert written["federate.total_round_num"] == 500
    assert written["model.out_channels"] == 2
    assert written["seed"] == 7
    assert written["early_stop.patience"] == 0
    unit = "train.batch_or_epoch" if layout == CURRENT else "federate.batch_or_epoch"
    assert written[unit] == "epoch"


def test_a_server_that_steps_gets_whole_models() -> None:
    """An aggregation while updates come in would overwrite what FedOpt subtracts."""
    task = get_task("LR-CreditG-v1").variant(algorithm="fedopt")
    server = {"server_learning_rate": 0.3, "server_momentum": 0.9}
    recent, first = (entries(task, layout, **server) for layout in LAYOUTS)
    assert (recent["fedopt.optimizer.lr"], recent["fedopt.optimizer.momentum"]) == (0.3, 0.9)
    assert (first["fedopt.lr_server"], first["fedopt.momentum_server"]) == (0.3, 0.9)
    for written in (recent, first):
        assert written["fedopt.use"] is True
        assert written["federate.online_aggr"] is written["federate.share_local_model"] is False


def test_networks_have_the_shape_of_ours() -> None:
    network = entries(get_task("MLP-CreditG-v1"), CURRENT, model_depth=2, model_width=33)
    assert (network["model.layer"], network["model.hidden"]) == (3, 33)
    images = entries(get_task("CNN-FEMNIST-v1"), CURRENT, dropout=0.25)
    assert (images["model.type"], images["model.hidden"]) == ("convnet2", 2048)
    assert (images["grad.grad_clip"], images["model.dropout"]) == (5.0, 0.25)
    graph = entries(get_task("GNN-Cora-v1"), FIRST, step_size=3)
    assert (graph["model.type"], graph["model.hidden"], graph["model.layer"]) == ("gcn", 64, 2)
    assert graph["federate.batch_or_epoch"] == "batch"  # a full-batch step
    assert graph["federate.local_update_steps"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.id)
def test_what_it_cannot_do_is_refused_with_a_reason(task: Task) -> None:
    trained = task.variant(precision="float32")  # what environments train unless asked
    assert (unsupported(trained) == "") == (task.model in ("LR", "MLP", "CNN", "GNN"))
    assert "nbafl" in unsupported(get_task("LR-CreditG-v1").variant(algorithm="nbafl"))
    assert "momentum" in unsupported(get_task("LR-CreditG-v1").fix({"momentum": 0.9}))
    assert "bfloat16" in unsupported(get_task("CNN-FEMNIST-v1").variant(precision="bfloat16"))


def test_what_a_version_cannot_do_is_refused() -> None:
    task = get_task("LR-CreditG-v1")
    require_layout(task, FIRST)
    require_layout(task.variant(algorithm="fedprox"), CURRENT)
    with pytest.raises(InvalidArgumentError, match="frozen"):
        require_layout(task.variant(algorithm="fedprox"), FIRST)
    with pytest.raises(InvalidArgumentError, match=r"0\.1 or newer"):
        require_layout(task, "")


class Node(dict[str, Any]):
    """Like a node of FederatedScope's configuration: entries are attributes, too."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


@pytest.fixture
def config() -> Node:
    train = Node(optimizer=Node(type="SGD", lr=0.1), local_update_steps=1)
    return Node(seed=0, train=train, federate=Node(client_num=0))


def test_entries_are_written(config: Node) -> None:
    wanted = {"train.optimizer.lr": 0.5, "train.optimizer.weight_decay": 0.1, "seed": 3}
    write_entries(config, wanted)
    assert config.train.optimizer == {"type": "SGD", "lr": 0.5, "weight_decay": 0.1}
    require_unchanged(config, wanted)


@pytest.mark.parametrize(
    "key", ["federate.local_update_steps", "optimizer.lr", "sede", "train.optimizer.learning_rate"]
)
def test_a_key_that_would_be_ignored_is_an_error(config: Node, key: str) -> None:
    """The keys of one layout are taken, and ignored, by the other; so are spelling mistakes."""
    with pytest.raises(KeyError, match=key):
        write_entries(config, {key: 1})


def test_a_changed_entry_is_an_error(config: Node) -> None:
    write_entries(config, {"federate.client_num": 5})
    config.federate.client_num = 1
    with pytest.raises(ValueError, match=r"federate\.client_num.*5 was written, and it holds 1"):
        require_unchanged(config, {"federate.client_num": 5})
    del config.federate["client_num"]
    with pytest.raises(ValueError, match="holds None"):
        require_unchanged(config, {"federate.client_num": 5})


def test_the_program_stands_alone() -> None:
    """Nothing of the package is imported in FederatedScope's interpreter but the program."""
    from fedhpo_gym.backends.federatedscope import process
    from import_contract import imports_of

    allowed = "fedhpo_gym.backends.federatedscope.peer"
    for path in process.PROGRAM.parent.glob("*.py"):
        found = [one.module for one in imports_of(path.read_text(encoding="utf-8"))]
        own = [name for name in found if name.startswith("fedhpo_gym")]
        assert all(name.startswith(allowed) for name in own), path


# ------------------------------------------- the federation that is handed over is that of the task


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
