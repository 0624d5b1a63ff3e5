"""A build says what it will cost before it computes, and needs no torch for small models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

from fedhpo_gym.building import build as module
from fedhpo_gym.building.build import Estimate, build_sample, build_table
from fedhpo_gym.building.design import UNIT_NUMBERS, GridDesign
from fedhpo_gym.building.sample import SampleDesign
from fedhpo_gym.fl.course import Course
from fedhpo_gym.tasks import get_task
from stored_files import tiny_task

pytestmark = pytest.mark.raw

TASK = tiny_task()
DESIGN = GridDesign(TASK)
GRID = 2**4 * 2 * 3  # configurations, rates, seeds


class EnoughError(Exception):
    """Raised instead of computing."""


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock on which a round takes 10 seconds; returns the sizes of the batches that train."""
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    made: list[int] = []
    real: Callable[..., object] = module.make_batch

    def make_batch(task: object, courses: list[object], *rest: object) -> object:
        made.append(len(courses))
        return real(task, courses, *rest)

    monkeypatch.setattr(module, "make_batch", make_batch)
    return made


def asked(build: Callable[..., Path], *words: object, **arguments: object) -> Estimate:
    found: list[Estimate] = []

    def announce(estimate: Estimate) -> None:
        found.append(estimate)
        raise EnoughError

    with pytest.raises(EnoughError):
        build(*words, workers=2, announce=announce, **arguments)
    [estimate] = found
    return estimate


def test_a_table_costs_its_grid_and_nothing_is_computed_before(
    tmp_path: Path, slow_clock: list[int]
) -> None:
    found = asked(build_table, TASK, folder=tmp_path)
    units = DESIGN.units()
    assert (found.courses, found.rounds) == (GRID, GRID * TASK.max_round)
    together = len(DESIGN.courses(units[0]))
    assert slow_clock == [together, together]  # the first for what is compiled once, and patience
    assert found.core_hours == pytest.approx(10 / together * found.rounds / 3600)
    assert found.hours == found.core_hours / 2
    assert not list(tmp_path.rglob("*.npz"))


def test_what_is_compiled_once_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The beginning, then start and end of each round: the first takes 15 s, the others one.
    ticks = iter([0.0, 0.0, 15.0, *(15.0 + n // 2 for n in range(1, 99))])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    found = asked(build_table, TASK, folder=tmp_path)
    together = len(DESIGN.courses(DESIGN.units()[0]))
    assert found.core_hours == pytest.approx(1 / together * found.rounds / 3600)


def test_a_sample_costs_its_courses(tmp_path: Path, slow_clock: list[int]) -> None:
    found = asked(build_sample, TASK, 7, rounds=4, folder=tmp_path)
    assert (found.courses, found.rounds) == (7, 28)
    assert slow_clock


def test_what_is_finished_costs_nothing(tmp_path: Path) -> None:
    from fedhpo_gym.building.build import compute_unit

    parts = tmp_path / "parts" / DESIGN.parts_name
    parts.mkdir(parents=True)
    unit = DESIGN.units()[0]
    compute_unit(DESIGN, unit, parts)
    found = asked(build_table, TASK, folder=tmp_path)
    assert found.courses == GRID - len(DESIGN.courses(unit))


def test_one_course_of_a_large_model_is_enough() -> None:
    task = get_task("CNN-FEMNIST")
    design = GridDesign(task)
    units = design.units()
    courses = design.courses(units[len(units) // 2])
    rates = task.fidelity_space["client_sample_rate"].grid
    assert task.num_parameters > UNIT_NUMBERS
    [middle] = module._slice_courses(courses, task.num_parameters, 0.5)
    assert middle.client_sample_rate == rates[len(rates) // 2]
    [last] = module._slice_courses(courses, task.num_parameters, 0.999)
    assert last is courses[-1]
    assert module._slice_courses(courses, 1, 0.999) == courses


def test_an_estimate_looks_at_small_and_large_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the courses takes a second a round, the others none: one would mislead."""
    clock, task = [0.0], get_task("MLP-BreastCancer-v1")
    slow = {
        course.client_sample_rate
        for course in SampleDesign(task, 1, 4).courses(SampleDesign(task, 1, 4).units()[0])
    }

    class Batch:
        def __init__(self, courses: list[Course]) -> None:
            self.seconds = sum(1.0 if c.client_sample_rate in slow else 0.0 for c in courses)

        def advance(self, rounds: int, evaluated: list[int]) -> None:
            clock[0] += self.seconds

    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "make_batch", lambda _task, courses, *_: Batch(courses))
    found = asked(build_sample, task, 50, rounds=4, folder=tmp_path)
    assert found.core_hours * 3600 == pytest.approx(found.rounds / 5, rel=0.5)


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (1e-9, "2e-09 core-hours, 1 seconds"),
        (0.5, "1 core-hours, 30.0 minutes"),
        (3.0, "6 core-hours, 3.0 hours"),
        (23_040.0, "46,000 core-hours, 960.0 days"),
    ],
)
def test_it_is_said_in_one_line(hours: float, words: str) -> None:
    estimate = Estimate("LR-Car-fedavg", 10_080, 5_040_000, 2 * hours, 2)
    assert str(estimate) == (
        f"LR-Car-fedavg: 10,080 courses, 5,040,000 rounds, about {words} with 2 workers"
    )


def test_it_is_said_without_being_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise EnoughError

    monkeypatch.setattr("fedhpo_gym.building.build.compute_units", stop)
    with pytest.raises(EnoughError):
        build_sample(TASK, 3, rounds=2, folder=tmp_path, workers=1)
    assert "3 courses, 6 rounds, about" in capsys.readouterr().err


# --------------------------------------------------------------------------------- without torch

PROGRAM = """
import sys
sys.modules["torch"] = None
if __name__ == "__main__":
    from fedhpo_gym.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def build_alone(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, str(program), "build", *words, "--out", str(folder), "--yes"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_logistic_regression_is_built_without_torch(tmp_path: Path) -> None:
    words = ("--sample", "2", "--rounds", "2", "--workers", "1")
    done = build_alone(tmp_path, "FedHPO-LR-CreditG-v1", *words)
    assert done.returncode == 0, done.stderr
    card = json.loads(Path(done.stdout.split()[-1]).read_text(encoding="utf-8"))
    assert "equal bits alone and in any batch" in card["hardware"]
