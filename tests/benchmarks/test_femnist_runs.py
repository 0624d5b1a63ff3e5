"""The FEMNIST benchmark reads FederatedScope's logs, and trains what they say."""

from __future__ import annotations

import gzip
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

import torch

from fedhpo_gym.datasets import Dataset, make_dataset
from fedhpo_gym.errors import DamagedDataError, MissingDataError
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models.cnn import ConvNet, _normalise

pytestmark = pytest.mark.raw

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
CONFIG = """\
data:
  splits:
  - 0.6
  - 0.2
  - 0.2
  transform:
  - - ToTensor
    - {}
  - - Normalize
    - mean:
      - 0.9637
      std:
      - 0.1592
  type: femnist
dataloader:
  batch_size: 10
eval:
  freq: 1
federate:
  client_num: 3
  method: METHOD
  sample_client_num: 3
  total_round_num: 200
grad:
  grad_clip: 5.0
model:
  dropout: 0.0
  hidden: 2048
regularizer:
  mu: 0.5
  type: ''
train:
  batch_or_epoch: epoch
  local_update_steps: 1
  optimizer:
    lr: 0.01
    type: SGD
    weight_decay: 0.0
"""
SAMPLES = ((6, 2, 2), (9, 3, 4), (12, 4, 3))
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    sizes = (10, 12, 16, 17, 19, 40)
    images = rng.choice(np.array([0, 100, 255], dtype=np.uint8), (sum(sizes), 28, 28))
    labels, users = rng.integers(0, 62, sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    return make_dataset("FEMNIST", images, labels, 62, users)


def loss_of(client: int, index: int, split: int) -> float:
    return 4.0 - 0.5 * index + 0.1 * client + 0.01 * split


def lines(rounds: int) -> list[str]:
    """Clients' records of whole rounds, out of order, and what FederatedScope writes besides."""
    found = []
    for index in range(rounds):
        for client in (3, 1, 2):
            parts: list[dict[str, float]] = [{}, {}, {}]
            for split, name in enumerate(("train", "val", "test")):
                total, mean = SAMPLES[client - 1][split], loss_of(client, index, split)
                parts[split] = {f"{name}_total": total, f"{name}_avg_loss": mean}
                parts[split] |= {f"{name}_loss": mean * total, f"{name}_acc": 0.1 * client}
            for part in (parts[0], parts[1] | parts[2]):
                found.append({"Role": f"Client #{client}", "Round": index, "Results_raw": part})
        found.append({"Role": "Server #", "Round": index, "Results_raw": {"val_acc": [0.1, 0.2]}})
    return [str(line) for line in found]


def write_run(folder: Path, content: list[str], config: str = CONFIG) -> Path:
    folder.mkdir(parents=True)
    with gzip.open(folder / "config.yaml.gz", "wt", encoding="utf-8") as file:
        file.write(config.replace("METHOD", "fedprox"))
    with gzip.open(folder / "eval_results.raw.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(content))
    return folder


def test_curves_are_read_per_client_and_weighted(load: Load, tmp_path: Path) -> None:
    logs = load("femnist_logs")
    unfinished = str({"Role": "Client #1", "Round": 2, "Results_raw": {"train_avg_loss": 9.0}})
    log = logs.read_log(write_run(tmp_path / "run", [*lines(2), unfinished]))
    assert log.metrics.shape == (2, 3, 3, 2)
    assert log.samples.tolist() == [list(sizes) for sizes in SAMPLES]
    for index in range(2):
        for client in range(3):
            expected = [loss_of(client + 1, index, split) for split in range(3)]
            np.testing.assert_allclose(log.metrics[index, client, :, 0], expected)
    # By hand: validation losses 4.11, 4.21, 4.31 of 2, 3 and 4 samples.
    by_hand = (4.11 * 2 + 4.21 * 3 + 4.31 * 4) / 9
    assert logs.weighted(log.metrics, log.samples)[0, 1, 0] == pytest.approx(by_hand)


def test_settings_are_what_the_file_says(load: Load, tmp_path: Path) -> None:
    logs = load("femnist_logs")
    said = logs.read_settings(write_run(tmp_path / "run", []))
    expected = logs.Settings(
        "fedprox", 3, 200, 0.01, 0.0, 10, 1, 0.0, 0.5, 2048, 5.0, mean=0.9637, std=0.1592
    )
    assert said == expected


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [("  grad_clip: 5.0\n", "", "grad.grad_clip"), ("type: SGD", "type: Adam", "Adam")],
)
def test_settings_that_cannot_be_compared_are_named(
    load: Load, tmp_path: Path, before: str, after: str, named: str
) -> None:
    folder = write_run(tmp_path / "run", [], CONFIG.replace(before, after))
    with pytest.raises(DamagedDataError, match=named):
        load("femnist_logs").read_settings(folder)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (["{'Role': "], "line 1"),
        (lines(1)[:-2], "a whole round of 3 clients"),
        (lines(1)[-1:], "results of clients in round 0"),
        (lines(2)[7:], "results of clients in round 0"),
        ([line.replace("'val_loss': 8.", "'val_loss': 9.") for line in lines(1)], "mean loss"),
        ([*lines(1), *(x.replace("': 12,", "': 11,") for x in lines(2)[7:])], "must not change"),
    ],
)
def test_damaged_logs_are_refused(
    load: Load, tmp_path: Path, content: list[str], named: str
) -> None:
    folder = write_run(tmp_path / "run", content)
    with pytest.raises(DamagedDataError, match=named):
        load("femnist_logs").read_log(folder)


def test_writers_are_as_large_as_theirs_and_differ_by_seed(load: Load) -> None:
    courses = load("femnist_courses")
    available, wanted = np.arange(5, 205), np.array([100, 120, 100, 180])
    chosen = [courses.choose_writers(available, wanted, seed) for seed in range(8)]
    for writers in chosen:
        assert len(set(writers.tolist())) == 4
        assert np.abs(np.sort(available[writers]) - np.sort(wanted)).max() <= courses.NEAREST
    assert len({tuple(writers.tolist()) for writers in chosen}) > 1
    np.testing.assert_array_equal(chosen[3], courses.choose_writers(available, wanted, 3))


@pytest.mark.parametrize(("binary", "values"), [(False, (0, 100, 255)), (True, (0, 0, 1))])
def test_the_network_sees_their_pixels(
    load: Load, dataset: Dataset, tmp_path: Path, binary: bool, values: tuple[int, ...]
) -> None:
    courses = load("femnist_courses")
    said = load("femnist_logs").read_settings(write_run(tmp_path / "run", []))
    federation = courses.choose_federation(dataset, np.array([12, 17, 19]), 1)
    kind = courses.Variant("any", "any", normalisation=True, binary=binary)
    network, _ = courses.like_theirs(said, kind)
    model = network.for_federation(federation, torch.device("cpu"))
    pixels = np.array([0, 100, 255], dtype=np.uint8).repeat(28 * 28).reshape(3, 28, 28)
    inputs = model.inputs(pixels)
    for _ in range(2):  # normalisation must not change what it was given
        seen = _normalise(inputs, torch.float32).flatten(1)
        expected = [(value / 255 - said.mean) / said.std for value in values]
        np.testing.assert_allclose(seen[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_statistics_stay_with_the_clients(load: Load, dataset: Dataset, tmp_path: Path) -> None:
    courses = load("femnist_courses")
    said = load("femnist_logs").read_settings(write_run(tmp_path / "run", []))
    names = {*ConvNet.norms, "weight3"}
    assert not courses.like_theirs(said, courses.VARIANTS["package"])[1].personal(
        names, ConvNet.norms
    )
    federation = courses.choose_federation(dataset, np.array([12, 17, 19]), 1)
    model, algorithm = courses.like_theirs(said, courses.VARIANTS["statistics"])
    batch = CourseBatch({1: federation}, model, algorithm, [courses.make_course(said, 1)])
    batch.advance(1, evaluated=())
    (state,) = batch.snapshot()
    assert state is not None
    assert set(state.personal) == ConvNet.buffers
    mean = state.personal["mean1"].reshape(1, 3, -1)
    assert not torch.allclose(mean[0, 0], mean[0, 1])


def test_training_learns_and_is_kept(load: Load, dataset: Dataset, tmp_path: Path) -> None:
    courses = load("femnist_courses")
    said = load("femnist_logs").read_settings(write_run(tmp_path / "run", []))
    federation = courses.choose_federation(dataset, np.array([12, 17]), 1)

    def compute() -> Any:
        return courses.train(said, courses.VARIANTS["package"], federation, (1, 2))

    path = tmp_path / "work" / "course.json"
    curve = courses.cached(path, (1, 2), compute)
    assert list(curve) == [1, 2]
    assert all(values.shape == (3, 2) for values in curve.values())
    assert curve[2][0, 0] < curve[1][0, 0] < np.log(62) + 0.1
    again = courses.cached(path, (2,), lambda: pytest.fail("not kept"))
    assert list(again) == [2]
    np.testing.assert_array_equal(again[2], curve[2])
    longer = dict.fromkeys((1, 2, 4), curve[2])
    assert courses.cached(path, (1, 4), lambda: longer) is longer


def test_a_course_is_named_after_all_that_it_depends_on(
    load: Load, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses = load("femnist_courses")
    said = load("femnist_logs").read_settings(write_run(tmp_path / "run", []))
    package, wanted = courses.VARIANTS["package"], np.array([12, 17])
    federation = courses.choose_federation(dataset, wanted, 1)
    name = courses.course_name(said, package, federation)
    assert re.fullmatch(r"fedprox-3-package-1-[0-9a-f]{8}", name)
    again = courses.choose_federation(dataset, wanted, 1)
    assert courses.course_name(said, package, again) == name
    pixels = np.asarray(dataset.features).copy()
    pixels[federation.clients[0][0][0], 0, 0] ^= 1
    others = {
        courses.course_name(replace(said, learning_rate=0.02), package, federation),
        courses.course_name(said, replace(package, normalisation=True), federation),
        courses.course_name(said, package, replace(federation, features=pixels)),
        courses.course_name(said, package, replace(federation, labels=federation.labels[::-1])),
    }
    monkeypatch.setattr(courses, "ENGINE_VERSION", courses.ENGINE_VERSION + 1)
    others.add(courses.course_name(said, package, federation))
    assert len(others | {name}) == 6


def make_pair(load: Load, algorithm: str, losses: list[float], samples: Any, curve: Any) -> Any:
    """A pair whose theirs have the same loss everywhere, and accuracies of a tenth of the round."""
    logs, tables = load("femnist_logs"), load("femnist_tables")
    values = [(loss, 0.1 * index) for index, loss in enumerate(losses, 1)]
    shape = (len(losses), len(samples), 3, 2)
    log = logs.Log(np.broadcast_to(np.array(values)[:, None, None], shape), np.array(samples))
    said = logs.Settings(algorithm, len(samples), 9, 0.1, 0, 8, 1, 0, 0, 9, 5, 0.5, 0.5)
    return tables.Pair(said, log, {"package": [curve]}, np.array([[1, 1, 1]]))


def test_rounds_to_equal_losses_and_both_logs_by_hand(load: Load) -> None:
    tables = load("femnist_tables")
    curve = {1: np.full((3, 2), 2.5), 2: np.full((3, 2), 0.5)}
    one = make_pair(load, "fedavg", [4.0, 3.0, 2.0], [(6, 2, 2), (9, 3, 4)], curve)
    other = make_pair(load, "fedprox", [4.1, 2.9], [(6, 2, 2), (9, 3, 5), (9, 3, 4)], curve)
    lines = tables.lag_table(one).splitlines()[2:]
    assert lines[0] == "| package, round 1 | 2.500 | -1.500 | 3 | 2.500 | 0.300 | +2.200 |"
    assert lines[1] == "| package, round 2 | 0.500 | -2.500 |  |  |  |  |"
    assert tables.shared_clients(one.log, other.log) == 1
    assert tables.shared_clients(one.log, one.log) == 2
    lines = tables.logs_table(one, other, (1, 2, 3)).splitlines()[2:]
    assert lines == [
        "| 1 | 4.000 | 4.100 | +0.100 | 0.100 | 0.100 | +0.000 |",
        "| 2 | 3.000 | 2.900 | -0.100 | 0.200 | 0.200 | +0.000 |",
    ]


def test_the_report_shows_both_programs(
    load: Load, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load("femnist_runs")
    trained = []

    def train(*given: Any) -> Any:
        _, variant, federation, evaluated, *_ = given
        trained.append((variant.name, federation.seed, evaluated))
        return {r: np.full((3, 2), r + 0.1 * federation.seed) for r in evaluated}

    monkeypatch.setattr(benchmark.ours, "train", train)
    monkeypatch.setattr(benchmark, "load_dataset", lambda _: dataset)
    write_run(tmp_path / "runs" / "fedprox_convnet2", lines(3))
    write_run(tmp_path / "runs" / "fedprox_resnet18", [])
    out, picture = tmp_path / "report.md", tmp_path / "docs" / "curves.svg"
    options = [f"--runs={tmp_path / 'runs'}", f"--work={tmp_path / 'work'}", f"--out={out}"]
    options += [f"--picture={picture}", "--rounds=2", "--short=1", "--choices=3"]
    report = benchmark.main(options)
    assert out.read_text(encoding="utf-8") == report
    assert not re.search(r"/(work|root|home|tmp|Users)/", report)
    far = ("package", "statistics")
    first = [(name, 1, [1, 2] if name in far else [1]) for name in benchmark.ours.VARIANTS]
    assert trained == [*first, ("statistics", 2, [1]), ("statistics", 3, [1])]
    found = re.findall(r"^\| ([12], test|theirs) \|(.*)\|$", report, re.M)
    rows = {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}
    by_hand = [sum(loss_of(c, r, 2) * SAMPLES[c - 1][2] for c in (1, 2, 3)) / 9 for r in (0, 1)]
    assert rows["1, test"][:5] == ["3", f"{by_hand[0]:.3f}", "1.100", "1.200", "1.300"]
    assert rows["2, test"][:5] == ["1", f"{by_hand[1]:.3f}", "2.100", "2.100", "2.100"]
    val = [sum(loss_of(c, r, 1) * SAMPLES[c - 1][1] for c in (1, 2, 3)) / 9 for r in (0, 1)]
    means = [(one + other) / 2 for one, other in zip(val, by_hand, strict=True)]
    assert rows["theirs"][:2] == [f"{value:.3f}" for value in means]
    # Three rounds of theirs never come to our loss, so the other cells are empty.
    assert f"| package, round 1 | 1.100 | {1.1 - means[0]:+.3f} |  |" in report
    assert picture.read_text(encoding="utf-8").count("<svg") == 1
    monkeypatch.setattr(benchmark, "draw", lambda *_: None)
    benchmark.main(options)
    assert len(trained) == 6  # every course was finished already


def test_without_logs_or_data_it_is_skipped_aloud(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = load("femnist_runs")

    def missing(name: str) -> Dataset:
        raise MissingDataError(f"{name} is not here")

    monkeypatch.setattr(benchmark, "load_dataset", missing)
    assert benchmark.main([]) == ""
    assert "skipped: needs --runs" in capsys.readouterr().out
    write_run(tmp_path / "fedprox_convnet2", lines(1))
    assert benchmark.main([f"--runs={tmp_path}", f"--out={tmp_path / 'out.md'}"]) == ""
    assert "skipped: FEMNIST is not here" in capsys.readouterr().out
    assert not (tmp_path / "out.md").exists()
