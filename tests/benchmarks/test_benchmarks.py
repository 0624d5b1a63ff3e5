"""Every benchmark can be called, and measures what it says; the times themselves are not tested."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

import torch

from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import Task, get_task
from plain_draws import client_order

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
COMMANDS = sorted(p for p in FOLDER.glob("*/*.py") if "Parser(" in p.read_text(encoding="utf-8"))
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that imports a benchmark, whose fresh processes are this one."""
    monkeypatch.setattr(sys, "path", [*map(str, {p.parent for p in COMMANDS}), *sys.path])
    monkeypatch.syspath_prepend(str(FOLDER))
    measuring = importlib.import_module("measuring")
    monkeypatch.setattr(measuring, "in_fresh_process", lambda f, *a: (f(*a), 1.0))
    return importlib.import_module


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_command_says_what_it_takes(
    path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        load(path.stem).main()
    assert "--out" in capsys.readouterr().out


SMALLEST = {
    "agent_speed": "--agent random",
    "env_speed": "--steps 5 --repeats 1",
    "memory": "--task LR-BreastCancer-v0 --rounds 2 --batch-sizes 256",
    "raw_together": "--task FedHPO-LR-BreastCancer-v0 --configurations 2 --rounds 1",
    "report_speed": "--problems 2 --agents 2 --seeds 2 --trials 20",
    "surrogate_errors": "",
    "surrogate_speed": "--size 8 --turns 1",
    "vector_env_speed": "--sizes 8 2 --turns 1 --steps 3",
    "vector_round_speed": "--num-envs 2 --turns 1",
}


@pytest.mark.raw
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_run_writes_a_page(name: str, load: Load, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    benchmark = load(name)
    if name == "vector_env_speed":
        benchmark.SINGLES = 2
    report = benchmark.main([*SMALLEST[name].split(), "--out", str(out)])
    assert out.read_text(encoding="utf-8") == report
    assert re.search(rf"- command: `python benchmarks/\w+/{name}.py ?{SMALLEST[name]}`", report)
    assert "| ---: |" in report


def test_pages_name_no_place_on_this_machine(load: Load, tmp_path: Path) -> None:
    parser = load("measuring").Parser(str(FOLDER / "a" / "b.py"), "")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args(["x", "/home/me/x", "a=/home/me/y", f"--out={tmp_path}"])
    assert asked.command == "python benchmarks/a/b.py x PATH a=PATH"


def test_a_fresh_process_is_fresh(run_python: Callable[..., str]) -> None:
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import measuring\n"
    code += "ballast = b'x' * 300_000_000\n"
    code += "print(measuring.in_fresh_process(measuring.load_average)[1])"
    assert float(run_python(code)) < 300.0


def test_the_fastest_turn_counts(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring, clock = load("measuring"), iter([0.0, 8.0, 8.0, 9.0, 9.0, 13.0, 13.0, 14.0])
    monkeypatch.setattr(measuring.time, "process_time", lambda: next(clock))
    found = measuring.fastest({"a": (lambda: 0, 2), "b": (lambda: 0, 1)}, 2)
    assert found == {"a": 2.0, "b": 1.0}


@pytest.fixture
def task() -> Task:
    space = SearchSpace(
        (
            Dimension("learning_rate", 0.01, 0.1, "float", bins=2),
            Dimension("weight_decay", 0.0, 0.001, "float", bins=2),
            Dimension("batch_size", 8, 64, "int", log=True, bins=2),
            Dimension("step_size", 1, 4, "int", bins=2),
        )
    )
    rounds = Dimension("round", 1, 3, "int", bins=3, scope="fidelity")
    rates = Dimension("client_sample_rate", 0.4, 1.0, "float", bins=2, scope="fidelity")
    fidelity = SearchSpace((rounds, rates))
    return get_task("LR-BreastCancer-v0").variant(client_space=space, fidelity_space=fidelity)


@pytest.mark.raw
def test_engine_speed_extrapolates_what_the_peer_takes(
    load: Load, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_courses(*asked: Any) -> Any:
        courses = [{"cpu_s": [0.1] * (asked[4] - 1)} for _ in asked[3]]
        return {"courses": courses, "peak_rss_mb": 3.0, "versions": {"Peer": "1"}}

    benchmark = load("engine_speed")
    monkeypatch.setattr(load("peer"), "run_courses", run_courses)
    monkeypatch.setattr(benchmark, "get_task", lambda _: task)
    small = ["--grid-rounds=1", "--single-rounds=1", "--federatedscope=tree"]
    report = benchmark.main([*small, f"--out={tmp_path / 'report.md'}"])
    assert "## The whole grid: 96 courses" in report
    # The peer's rounds take 0.1 s, of which a course has 500.
    assert "| Peer 1 | 72 | 50 | 3 |" in report
    assert "| Peer 1 | 100 | 100 |" in report


@pytest.mark.raw
@pytest.mark.parametrize("step", ["autograd", "gradient by hand"])
@pytest.mark.parametrize(("batch", "epochs", "rate"), [(8, 2, 1.0), (64, 1, 0.4)])
def test_the_plain_loop_trains_the_engines_course(
    load: Load, task: Task, step: str, batch: int, epochs: int, rate: float
) -> None:
    class EngineDraws:
        def clients(self, round_index: int, count: int, sampled: int) -> list[int]:
            return sorted(client_order(1, round_index, count)[:sampled].tolist())

        def orders(self, round_index: int, client: int, size: int, epochs: int) -> Any:
            rng = stream(1, "minibatches", round_index, client)
            return [torch.from_numpy(rng.permutation(size)) for _ in range(epochs)]

    plain, task = load("plain_loop"), task.variant(preprocessing="standardized")
    asked = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": batch, "step_size": epochs}
    draws = EngineDraws(), plain.STEPS[step]
    course = plain.PlainCourse(task_federation(task, 1), asked, rate, *draws)
    expected = make_batch(task, [Course(asked, rate, 1)]).advance(4).metrics[0]
    np.testing.assert_allclose(course.advance(4), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.raw
def test_turns_are_taken_in_alternating_order_by_the_clients_of_our_engine(load: Load) -> None:
    turns, asked = load("turns"), []

    def way(name: str, seconds: float) -> Callable[[int], float]:
        return lambda rounds: asked.append((name, rounds)) or seconds * rounds

    schedule = turns.Schedule(warm_up=3, rounds=2, turns=2)
    found = turns.take_turns({"ours": way("ours", 0.1), "pfl": way("pfl", 0.4)}, schedule)
    assert asked == [("ours", 3), ("pfl", 3), ("ours", 2), ("pfl", 2), ("pfl", 2), ("ours", 2)]
    assert turns.compare(found).splitlines()[2] == "| ours | 100 | 4 | 4 | 4 |"

    course, task = Course({"learning_rate": 0.1, "batch_size": 8}, 0.4, 1), get_task("LR-Digits")
    batch = make_batch(task, [course])
    for cohort in turns.cohorts(task_federation(task, 1), course, 3):
        assert sorted(cohort) == np.flatnonzero(batch.sampled()[0]).tolist()
        batch.advance(1, evaluated=())
