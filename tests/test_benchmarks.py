"""Every benchmark can be called, and what its page compares or counts is what it says."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

import torch

from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.tasks import get_task
from plain_course import client_order

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
COMMANDS = sorted(p for p in FOLDER.glob("*/*.py") if "Parser(" in p.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {FOLDER, *(p.parent for p in COMMANDS)}
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.stem)
def test_every_command_says_what_it_takes(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [file.name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(file.stem).main()
    assert "--out" in capsys.readouterr().out


def test_pages_name_no_place_on_this_machine(tmp_path: Path) -> None:
    parser = importlib.import_module("measuring").Parser(str(FOLDER / "a" / "b.py"), "")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args(["x", "/home/me/x", "a=/home/me/y", f"--out={tmp_path}"])
    assert asked.command == "python benchmarks/a/b.py x PATH a=PATH"


def test_no_mutant_is_tried_beside_a_package_that_is_imported() -> None:
    copy = importlib.import_module("mutants").Copy
    with pytest.raises(RuntimeError, match="would see no mutant"):
        copy.run(copy.__new__(copy), ["tests/space"], 1.0)


@pytest.mark.raw
@pytest.mark.parametrize("step", ["autograd", "gradient by hand"])
@pytest.mark.parametrize(("batch", "epochs", "rate"), [(8, 2, 1.0), (64, 1, 0.4)])
def test_the_plain_loop_trains_the_engines_course(
    step: str, batch: int, epochs: int, rate: float
) -> None:
    def orders(index: int, client: int, size: int, epochs: int) -> list[torch.Tensor]:
        rng = stream(1, "minibatches", index, client)
        return [torch.from_numpy(rng.permutation(size)) for _ in range(epochs)]

    def clients(index: int, count: int, sampled: int) -> list[int]:
        return sorted(client_order(1, index, count)[:sampled].tolist())

    plain = importlib.import_module("plain_loop")
    task = get_task("LR-BreastCancer-v0").variant(preprocessing="standardized")
    asked = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": batch, "step_size": epochs}
    draws = SimpleNamespace(clients=clients, orders=orders)
    course = plain.PlainCourse(task_federation(task, 1), asked, rate, draws, plain.STEPS[step])
    expected = make_batch(task, [Course(asked, rate, 1)]).advance(4).metrics[0]
    np.testing.assert_allclose(course.advance(4), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "planted"),
    [
        ("hung", lambda: time.sleep(60.0)),
        ("undocumented", lambda: os._exit(3)),
        ("undocumented", lambda: {}["x"]),
        ("documented", lambda: Fidelity(0, 2.0)),
        ("memory", lambda: bytearray(2 << 30)),
    ],
)
def test_a_case_that_ends_badly_is_told_and_the_others_go_on(
    kind: str, planted: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = importlib.import_module("attacks.verdicts")

    def case(number: int) -> tuple[str, str]:
        told: tuple[str, str] = verdicts.judged(lambda: str(planted()) if number == 1 else "fine")
        return told

    monkeypatch.setattr(verdicts, "LIMIT_S", 0.5)
    assert verdicts.run_cases("planted", 3, case).counts == {"fine": 2, kind: 1}


def test_a_reader_that_checks_nothing_is_silent(tmp_path: Path) -> None:
    files, readers = (importlib.import_module(f"attacks.{name}") for name in ("files", "readers"))

    def make(folder: Path) -> None:
        (folder / "a.bin").write_bytes(bytes(range(200)))

    kind = files.Kind("unchecked", make, lambda folder: (folder / "a.bin").read_bytes())
    assert readers.fuzz(kind, 0, 60, 0, tmp_path).counts["silent"] > 50
