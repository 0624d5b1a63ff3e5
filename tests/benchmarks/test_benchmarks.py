"""The benchmarks measure what they say: the structure of their reports, never the times in them."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from fedhpo_gym.building.grid import GridDesign
from fedhpo_gym.building.units import write_unit
from fedhpo_gym.courses.training import make_batch, task_federation
from fedhpo_gym.datasets.graphs.records import make_node_graph
from fedhpo_gym.datasets.graphs.sparse import from_dense
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.federations.graphs import make_graph_federation
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import Task, get_task
from plain_draws import client_order

pytestmark = pytest.mark.raw

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NUMBER = re.compile(r"[\d,]+(\.\d+)?%?")
SMALL = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 0.1, "float", log=True, bins=2),
        Dimension("weight_decay", 0.0, 0.001, "float", bins=2),
        Dimension("batch_size", 8, 64, "int", log=True, bins=2),
        Dimension("step_size", 1, 4, "int", bins=2),
    )
)
FIDELITY = SearchSpace(
    (
        Dimension("round", 1, 3, "int", bins=3, scope="fidelity"),
        Dimension("client_sample_rate", 0.4, 1.0, "float", bins=2, scope="fidelity"),
    )
)
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def task() -> Task:
    return get_task("LR-BreastCancer-v0").variant(client_space=SMALL, fidelity_space=FIDELITY)


def call_here(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    return function(*arguments), 1.0


@pytest.fixture
def toy(load: Load, task: Task, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Benchmarks of a toy task, without fresh processes."""
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    for name in ("engine_speed", "memory", "federatedscope_parity"):
        monkeypatch.setattr(load(name), "get_task", lambda _: task)
    return load


def tables(report: str) -> list[list[list[str]]]:
    """Return the tables of a report as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n?)+", report, flags=re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for block in blocks
    ]


def assert_report(report: str, out: Path, shapes: list[tuple[int, int]]) -> None:
    """The report is in its file, says where it was made, and every cell holds a number."""
    assert out.read_text(encoding="utf-8") == report
    for word in ("- command: `python benchmarks/", "- date: ", "- machine: ", "- load average: "):
        assert word in report
    assert not re.search(r"/(work|root|home|tmp|Users)/", report)
    found = tables(report)
    assert [(len(rows) - 2, len(rows[0])) for rows in found] == shapes
    for header, _, *rows in found:
        for row in rows:
            assert len(row) == len(header)
            assert all(NUMBER.fullmatch(cell) for cell in row[1:] if cell), row


def answer(courses: int, rounds: int) -> dict[str, Any]:
    course = {"cpu_s": [0.1] * (rounds - 1), "wall_s": [0.1] * (rounds - 1)}
    course["val_loss"] = np.linspace(0.7, 0.5, rounds).tolist()
    return {"courses": [course] * courses, "peak_rss_mb": 3.0, "versions": {"Peer": "1"}}


def test_engine_speed_compares_with_everything(
    toy: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, asked = toy("engine_speed"), []

    def run_courses(*arguments: Any) -> Any:
        source, _, _, chosen, rounds = arguments
        asked.append((source, len(chosen), rounds))
        return answer(len(chosen), rounds)

    monkeypatch.setattr(toy("peer"), "run_courses", run_courses)
    out = tmp_path / "report.md"
    small = ["--grid-rounds=1", "--single-rounds=1", "--federatedscope-rounds=2"]
    report = benchmark.main([*small, "--federatedscope=tree", f"--out={out}"])
    assert asked == [(Path("tree"), 8, 4)]
    assert_report(report, out, [(5, 6), (2, 4), (4, 3)])
    grid, _, single = tables(report)
    assert "96 courses" in report
    assert grid[2][0] == "our engine, the grid as batches"
    assert grid[2][-1] == "1"
    # The peer's rounds take 0.1 s, of which a course has 500.
    assert grid[-1][:4] == ["Peer 1", "72", "50", "50"]
    assert single[-1][1:] == ["100", "100"]


def test_engine_speed_needs_no_peer(toy: Load, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    report = toy("engine_speed").main(["--grid-rounds=1", "--single-rounds=1", f"--out={out}"])
    assert_report(report, out, [(4, 6), (2, 4), (3, 3)])


def test_engine_speed_refuses_grids_without_its_single_courses(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = load("engine_speed")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load("measuring"), "in_fresh_process", stop)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main([])
    with pytest.raises(SystemExit):
        benchmark.main(["--task=LR-CreditG-v1"])
    assert "must have batch size and epochs (64, 1)" in capsys.readouterr().err


@pytest.fixture
def small_family(load: Load, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Any]:
    """`family_speed` with one family: a small perceptron on BreastCancer."""
    benchmark, families = load("family_speed"), load("families")
    configuration = {**families.FAMILIES["MLP"].configuration, "batch_size": 64}
    small = replace(
        families.FAMILIES["MLP"],
        configuration=configuration,
        courses=3,
        measured=(2, 2, 2, 2),
        warm_up=1,
        flops=(2 * 30 * 64, 2 * 64 * 2),
        turns=load("turns").Schedule(warm_up=1, rounds=1, turns=3),
    )
    monkeypatch.setattr(benchmark, "FAMILIES", {"MLP": small})
    monkeypatch.setattr(load("measuring"), "PEAK_SIZE", 64)
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    made = get_task("MLP-BreastCancer-v0").variant(preprocessing="standardized")
    monkeypatch.setattr(benchmark, "get_task", lambda _: made)
    return benchmark, small


def test_family_speed_compares_with_everything(
    small_family: tuple[ModuleType, Any],
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark, small = small_family
    asked = []

    def run_courses(*arguments: Any, settings: Mapping[str, Any]) -> Any:
        asked.append((arguments[2].features.dtype, arguments[4], settings))
        return answer(1, arguments[4])

    monkeypatch.setattr(load("peer"), "run_courses", run_courses)
    out = tmp_path / "report.md"
    report = benchmark.main(["--families=MLP", "--federatedscope=tree", f"--out={out}"])
    assert_report(report, out, [(4, 6), (2, 5)])
    assert asked == [(np.float32, 1 + 2 + 1, {**small.settings, "eval.freq": 1})]
    # A round of 0.1 s: 72 courses of 500 rounds per hour.
    assert tables(report)[0][-1][:3] == ["Peer 1", "72", "100"]
    assert tables(report)[1][-1][:4] == ["Peer 1, as its script", "500", "50", "72"]


def test_family_speed_compares_courses_as_each_system_runs_them(
    small_family: tuple[ModuleType, Any], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, small = small_family
    monkeypatch.setitem(benchmark.FAMILIES, "MLP", replace(small, every=2))
    monkeypatch.setattr(benchmark, "time_parts", lambda *_: (0.01, 0.05))

    def run_courses(*arguments: Any, settings: Mapping[str, Any]) -> Any:
        found = answer(1, arguments[4])
        # From one evaluation to the next: one training of 0.3 s per round, one evaluation of 0.1.
        found["courses"][0]["cpu_s"] = [0.3 * settings["eval.freq"] + 0.1] * 3
        return found

    monkeypatch.setattr(load("peer"), "run_courses", run_courses)
    arguments = argparse.Namespace(
        federatedscope=Path("tree"), federatedscope_python=Path("python")
    )
    evaluations = len(benchmark.get_task("").evaluated_rounds)
    ours, script, default = benchmark.measure_own("MLP", [("Peer 1", 0.35, 1.0)], arguments)
    assert ours[1:] == (evaluations, pytest.approx(500 * 0.01 + evaluations * 0.05))
    assert script == ("Peer 1, as its script", 250, pytest.approx(500 * 0.35))
    assert default == ("Peer 1, its default", 500, pytest.approx(500 * 0.4))


def test_family_speed_needs_no_peer_and_counts_operations(
    small_family: tuple[ModuleType, Any], tmp_path: Path
) -> None:
    benchmark, small = small_family
    out = tmp_path / "report.md"
    report = benchmark.main(["--families=MLP", f"--out={out}"])
    assert_report(report, out, [(3, 6), (1, 5)])
    # Per trained row: forward 4,096, weights 4,096, inputs of the last layer 256; 569 rows.
    assert small.work(1, 0) == 3 * 4096 - 3840
    assert small.work(0, 1) == 4096
    for row in tables(report)[0][2:]:
        assert float(row[3]) == pytest.approx(small.work(455, 569) / 1e6, rel=0.01)


def test_the_plain_module_loop_learns(small_family: tuple[ModuleType, Any], load: Load) -> None:
    _, small = small_family
    made = get_task("MLP-BreastCancer-v0").variant(preprocessing="standardized")
    course = load("plain_module").PlainModuleCourse(small, task_federation(made, 1))
    with torch.no_grad():
        course.advance(30)
    engine = make_batch(made, [Course(small.configuration, 1.0, 1)]).advance(30).metrics[0, -1]
    np.testing.assert_allclose(course.metrics.mean(axis=0), engine.mean(axis=0), atol=0.05)


@pytest.mark.parametrize("step", ["autograd", "gradient by hand"])
@pytest.mark.parametrize(("batch", "epochs", "rate"), [(8, 2, 1.0), (64, 1, 0.4)])
def test_the_plain_loop_trains_the_engines_course(
    load: Load, task: Task, step: str, batch: int, epochs: int, rate: float
) -> None:
    plain = load("plain_loop")
    federation = task_federation(task.variant(preprocessing="standardized"), 1)

    class EngineDraws:
        def clients(self, round_index: int, count: int, sampled: int) -> list[int]:
            return sorted(client_order(1, round_index, count)[:sampled].tolist())

        def orders(self, round_index: int, client: int, size: int, epochs: int) -> Any:
            rng = stream(1, "minibatches", round_index, client)
            return [torch.from_numpy(rng.permutation(size)) for _ in range(epochs)]

    configuration = {
        "learning_rate": 0.1,
        "weight_decay": 0.01,
        "batch_size": batch,
        "step_size": epochs,
    }
    course = plain.PlainCourse(federation, configuration, rate, EngineDraws(), plain.STEPS[step])
    batch_of_one = make_batch(
        task.variant(preprocessing="standardized"), [Course(configuration, rate, 1)]
    )
    expected = batch_of_one.advance(4).metrics[0]
    np.testing.assert_allclose(course.advance(4), expected, rtol=2e-4, atol=2e-5)


def test_memory_reports_every_unit(toy: Load, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    report = toy("memory").main(["--rounds=2", "--batch-sizes", "8", "64", f"--out={out}"])
    assert_report(report, out, [(2, 5)])
    assert ", 2 rounds" in report


def test_a_fresh_process_is_fresh(load: Load) -> None:
    ballast = np.ones(40_000_000)
    measuring = load("measuring")
    busy, peak = measuring.in_fresh_process(measuring.load_average)
    assert busy >= 0
    assert peak < ballast.nbytes / 1e6 + 100


def test_env_speed_reports_every_backend(
    load: Load, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_noise_table(task, tmp_path)
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    monkeypatch.setattr("fedhpo_gym.tables.locate.EMBEDDED", tmp_path)
    benchmark = load("env_speed")
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    out = tmp_path / "report.md"
    small = ["--task=FedHPO-LR-BreastCancer-v0", "--steps=5", "--repeats=1"]
    report = benchmark.main([*small, f"--out={out}"])
    found = tables(report)
    assert [row[0] for row in found[0][2:]] == ["tabular", "surrogate", "limit: numpy look-up"]
    assert [len(rows) for rows in found] == [5, 5]
    assert NUMBER.fullmatch(found[0][2][4])
    assert found[0][3][1:] == ["none yet"] * 6
    assert out.read_text(encoding="utf-8") == report


def write_noise_table(task: Task, folder: Path) -> None:
    parts = folder / "parts"
    parts.mkdir()
    rng = np.random.default_rng(0)
    design = GridDesign(task)
    for unit in design.units():
        count = len(design.courses(unit))
        metrics = rng.uniform(0.1, 1.0, (count, task.max_round, task.num_clients, 3, 3))
        arrays = {
            "metrics": metrics.astype(np.float32),
            "rounds": np.arange(1, task.max_round + 1),
            "hardware": np.array("made up"),
            "diverged_at": np.zeros(count, dtype=np.int64),
        }
        write_unit(parts, unit.name, arrays)
    design.consolidate(parts, folder)


def test_parity_reports_both_programs(
    toy: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_courses(*arguments: Any) -> Any:
        _, _, federation, chosen, rounds, initial = arguments
        assert initial[0].shape == (2, federation.features.shape[1] + 1)
        assert not np.array_equal(initial[0], initial[1])
        full, minibatch = chosen[0].configuration, chosen[-1].configuration
        assert full["batch_size"] == federation.num_samples[:, 0].max()
        assert minibatch["batch_size"] == 64
        return answer(len(chosen), rounds)

    monkeypatch.setattr(toy("peer"), "run_courses", run_courses)
    out = tmp_path / "report.md"
    small = ["--rounds=3", "--seeds=4", "--federatedscope-seeds=2", "--federatedscope=tree"]
    report = toy("federatedscope_parity").main([*small, f"--out={out}"])
    found = tables(report)
    assert [(len(rows) - 2, len(rows[0])) for rows in found] == [(2, 6), (4, 5)]
    assert [row[0] for row in found[0][2:]] == ["0.1", "0.01"]
    assert out.read_text(encoding="utf-8") == report


def test_parity_tells_equal_from_different(load: Load) -> None:
    compare = load("federatedscope_parity").compare
    rng = np.random.default_rng(0)
    curves = rng.normal(0.5, 0.01, (20, 6))
    noisy = curves[:8] + rng.normal(0, 1e-3, (8, 6))
    same = compare(curves, noisy)
    assert same["inside"] > 0.7
    assert same["expected"] == pytest.approx(19 / 21)
    assert same["standard_errors"] < 5
    shifted = compare(curves, noisy + 0.1)
    assert shifted["inside"] == 0.0
    assert shifted["largest"] == pytest.approx(0.1, abs=0.01)
    assert shifted["standard_errors"] > 50


def test_vector_env_speed_reports_every_size_and_variant(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load("vector_env_speed")
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    monkeypatch.setattr(benchmark, "SINGLES", 2)
    out = tmp_path / "report.md"
    report = benchmark.main(["--sizes", "8", "2", "--turns=1", "--steps=3", f"--out={out}"])
    sizes, variants = tables(report)
    names = [row[0] for row in sizes[3:]]
    assert names == ["N = 2", "limit, N = 2", "N = 8", "limit, N = 8"]
    assert len(variants) == 2 + len(benchmark.VARIANTS)
    assert all(NUMBER.fullmatch(row[1]) for row in sizes[2:] + variants[2:])
    assert "Target of 2,000,000 steps per second" in report
    assert out.read_text(encoding="utf-8") == report


def test_vector_round_speed_reports_every_variant(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load("vector_round_speed")
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    out, names = tmp_path / "report.md", list(benchmark.VARIANTS)[:2]
    words = ["--num-envs=2", "--turns=1", "--variants", *names]
    report = benchmark.main([*words, f"--out={out}"])
    assert all(name in report for name in names)
    assert "Target of 50 times: missed" in report
    assert out.read_text(encoding="utf-8") == report


def test_raw_together_reports_both_kinds_of_spaces(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load("raw_together")
    monkeypatch.setattr(load("measuring"), "in_fresh_process", call_here)
    out = tmp_path / "report.md"
    words = ["--task=FedHPO-LR-BreastCancer-v0", "--configurations=2", "--rounds=1"]
    report = benchmark.main([*words, f"--out={out}"])
    assert all(name in report for name in benchmark.SPACES)
    assert out.read_text(encoding="utf-8") == report


@pytest.mark.parametrize("name", ["federatedscope_parity", "env_speed", "vector_env_speed"])
def test_what_cannot_be_measured_is_skipped_aloud(
    load: Load,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark = load(name)
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    monkeypatch.setattr("fedhpo_gym.tables.locate.EMBEDDED", tmp_path)
    out = tmp_path / "report.md"
    assert benchmark.main([f"--out={out}"]) == ""
    assert capsys.readouterr().out.startswith("skipped: ")
    assert not out.exists()


def test_a_wrong_source_tree_is_named(load: Load, task: Task, tmp_path: Path) -> None:
    federation = task_federation(task, 1)
    configuration: Mapping[str, float] = {"batch_size": 8}
    with pytest.raises(RuntimeError, match="must name FederatedScope's source tree"):
        load("peer").run_courses(
            tmp_path, Path("python"), federation, [Course(configuration, 1, 1)], 1
        )


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234.5, "1,230"), (0.00123456, "0.00123")]
)
def test_numbers_have_no_exponent(load: Load, value: float, text: str) -> None:
    assert load("measuring").number(value) == text


# --------------------------------------------------------------------------- graphs for the peer


def test_federatedscope_gets_the_graphs_our_clients_have(load: Load, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = from_dense(rng.random((40, 3), dtype=np.float32))
    graph = make_node_graph(
        "made", features, rng.integers(0, 2, 40), rng.integers(0, 40, (2, 90)), 2
    )
    federation = make_graph_federation(graph, seed=1, num_clients=3, delta=4)
    load("peer")._write_data(tmp_path / "data.npz", federation, ())
    with np.load(tmp_path / "data.npz", allow_pickle=False) as found:
        data = dict(found)
    for client in range(3):
        own = {key: data[f"{key}_{client + 1}"] for key in ("x", "y", "edges", *SPLITS)}
        nodes, count = federation.client_nodes(client), len(own["y"])
        ours = federation.client_adjacency(client)[np.arange(count)]
        assert np.array_equal(own["x"], federation.features[nodes])
        theirs = np.eye(count, dtype=bool)
        theirs[tuple(own["edges"])] = True
        assert np.array_equal(theirs, ours > 0)
        assert np.array_equal(sum(own[split].astype(int) for split in SPLITS), np.ones(count))
        for split, rows in zip(SPLITS, federation.clients[client], strict=True):
            assert np.array_equal(nodes[own[split]], np.sort(rows))
    assert len(data["y_0"]) == 40
    assert data["edges_0"].shape == (2, 2 * graph.edges.shape[1])


def test_reward_saturation_counts_what_a_clip_hides(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = np.array([[0.5, 12.0], [12.5, 1e6]])[..., None]

    class Stored:
        def objective(self, *_: str) -> Any:
            return losses

    benchmark = load("reward_saturation")
    monkeypatch.setattr(benchmark, "list_tables", lambda: ("some",))
    monkeypatch.setattr(benchmark, "open_table", lambda _: Stored())
    out = tmp_path / "report.md"
    report = benchmark.main([f"--out={out}"])
    assert_report(report, out, [(1, 7)])
    assert tables(report)[0][2] == ["some", "4", "4", "75.0%", "2", "0.0%", "4"]
