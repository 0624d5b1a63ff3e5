"""Our engine and a peer in turns: who is asked for what, and what is made of the answers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from fedhpo_gym.courses.training import make_batch, task_federation
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.tasks import Task, get_task

pytestmark = pytest.mark.raw

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def task() -> Task:
    return get_task("LR-BreastCancer")


def test_turns_are_taken_by_all_in_alternating_order(load: Load) -> None:
    turns, asked = load("turns"), []

    def way(name: str, seconds: float) -> Callable[[int], float]:
        def turn(rounds: int) -> float:
            asked.append((name, rounds))
            return seconds * rounds

        return turn

    schedule = turns.Schedule(warm_up=3, rounds=2, turns=2)
    found = turns.take_turns({"ours": way("ours", 0.1), "pfl": way("pfl", 0.4)}, schedule)
    assert asked == [("ours", 3), ("pfl", 3), ("ours", 2), ("pfl", 2), ("pfl", 2), ("ours", 2)]
    assert schedule.total == 7
    assert turns.compare(found).splitlines()[2:] == [
        "| ours | 100 | 4 | 4 | 4 |",
        "| pfl | 400 | 1 | 1 | 1 |",
    ]


def test_pfl_is_told_the_clients_that_our_engine_samples(load: Load, task: Task) -> None:
    course = Course({"learning_rate": 0.1, "batch_size": 8}, 0.4, 1)
    batch = make_batch(task, [course])
    for cohort in load("turns").cohorts(task_federation(task, 1), course, 3):
        assert sorted(cohort) == np.flatnonzero(batch.sampled()[0]).tolist()
        batch.advance(1, evaluated=())


def test_a_peer_in_another_interpreter_is_asked_and_answers(
    load: Load, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, program = load("turns"), tmp_path / "peer.py"
    program.write_text(
        "import json, sys\n"
        "asked = json.load(open(sys.argv[1]))\n"
        "print(json.dumps({'versions': {'Peer': len(asked['cohorts'])}}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'cpu_s': 2.0 * int(line)}), flush=True)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(turns, "SCRIPT", program)
    federation, course = task_federation(task, 1), Course({"batch_size": 8}, 0.4, 1)
    compared = turns.Compared("logistic", torch.from_numpy)
    with turns.pfl(Path(sys.executable), federation, course, compared, 5) as (label, turn):
        assert (label, turn(3), turn(1)) == ("Peer 5", 6.0, 2.0)
    program.write_text("raise SystemExit(7)", encoding="utf-8")
    with (
        pytest.raises(RuntimeError, match="ended with 7"),
        turns.pfl(Path(sys.executable), federation, course, compared, 5),
    ):
        pass


def test_the_least_time_is_that_of_the_arithmetic(load: Load) -> None:
    small = load("families").FAMILIES["CNN"]
    toy = replace(small, flops=(6.0, 10.0, 20.0), convolutions=2)
    least = load("attainable").least_seconds(toy, trained=2, products=5.0, convolutions=3.0)
    assert least == pytest.approx(2 * (2 * 6 + 3 * 10) / 3 + 2 * 3 * 20 / 5)
