"""Building a table: killed at any moment, with any number of workers, it comes out the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stored_files import arrays_of

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.building import build
from fedhpo_gym.building.build import build_table
from fedhpo_gym.building.design import GridDesign, encode_curves
from fedhpo_gym.core.errors import InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import MAX_BYTES_VARIABLE
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.stored.table import Table
from stored_files import tiny_folder, tiny_task
from workers import CrewHere, wait_for

pytestmark = pytest.mark.raw

REPOSITORY = Path(__file__).resolve().parents[2]
TASK = tiny_task()
NAME = TASK.table_name
DESIGN = GridDesign(TASK)
BUILD = """
import sys
from pathlib import Path
from stored_files import tiny_task
from workers import CrewHere
from fedhpo_gym.building import build

if __name__ == "__main__":
    build.WorkerPool = CrewHere if sys.argv[2:] else build.WorkerPool
    build.build_table(tiny_task(), Path(sys.argv[1]), 1)
"""


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (REPOSITORY, REPOSITORY / "tests" / "support", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    script = folder / "build.py"
    folder.mkdir(exist_ok=True)
    script.write_text(BUILD, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def parts_of(folder: Path) -> Path:
    return folder / "parts" / DESIGN.parts_name


def finished(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in parts_of(folder).glob("*.npz")}


def wait_for_units(folder: Path, process: subprocess.Popen[bytes], count: int) -> None:
    deadline = time.monotonic() + 200
    while len(finished(folder)) < count and process.poll() is None:
        assert time.monotonic() < deadline, "the build does not get on"
        time.sleep(0.002)


def children_of(pid: int) -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == pid:
            found.add(int(status.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def assert_same_table(one: Path, two: Path) -> None:
    first, second = (Table(folder / f"{NAME}.table.json") for folder in (one, two))
    assert first.sha256 == second.sha256
    arrays = [arrays_of(folder / f"{NAME}.table.json") for folder in (one, two)]
    assert arrays[0].read_bytes() == arrays[1].read_bytes()
    dated = {"created", "hardware", "software"}
    cards = [{k: v for k, v in table.card.items() if k not in dated} for table in (first, second)]
    assert cards[0] == cards[1]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, set[int]]]:
    """Return a folder in which a build was killed in the middle, and its orphans."""
    folder = tmp_path_factory.mktemp("killed")
    orphans: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        paths = (REPOSITORY, REPOSITORY / "tests" / "support")
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        process = start(folder)
        wait_for_units(folder, process, 2)
        orphans |= children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    yield folder, orphans
    for pid in orphans:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_a_killed_build_leaves_no_worker_behind(killed: tuple[Path, set[int]]) -> None:
    _, orphans = killed
    assert orphans
    deadline = time.monotonic() + 60
    while any(map(is_running, orphans)):
        assert time.monotonic() < deadline, "workers outlive the build they worked for"
        time.sleep(0.05)


def test_a_killed_build_goes_on_and_ends_the_same(
    killed: tuple[Path, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = killed
    before = finished(folder)
    assert 0 < len(before) < len(DESIGN.units())
    assert not (folder / f"{NAME}.table.json").exists(), "a table that is not finished is none"
    torn = parts_of(folder) / ".seed3-batch32.npz.0123.part"
    torn.write_bytes(b"killed while writing")
    monkeypatch.setattr(build, "WorkerPool", CrewHere)
    build_table(TASK, folder, workers=2)
    after = finished(folder)
    assert {name: after[name] for name in before} == before, "a finished unit was computed again"
    assert len(after) == len(DESIGN.units())
    assert_same_table(folder, tiny_folder())


CLI = """
import sys
from stored_files import tiny_task
from fedhpo_gym.cli import data, main

if __name__ == "__main__":
    data.asked_task = lambda options: tiny_task(rounds=20_000)
    sys.exit(main(["build", "FedHPO-LR-BreastCancer-v0", "--workers", "2", "--out", sys.argv[1]]))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_a_build_that_is_interrupted_ends_at_once_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(CLI, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.rglob("claims")):  # the first worker begins
        assert process.poll() is None
        assert time.monotonic() < deadline, "the build does not begin"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "Interrupted; the same command goes on after what is done."
    assert not list(tmp_path.rglob("*.part"))


def test_builds_that_share_a_folder_share_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, first_seen = start(tmp_path, "alone"), dict[str, int]()
    ended = threading.Event()

    def look() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.01)
            first_seen.update({**finished(tmp_path), **first_seen})

    looking = threading.Thread(target=look)
    looking.start()
    try:
        wait_for_units(tmp_path, other, 1)
        monkeypatch.setattr(build, "WorkerPool", CrewHere)
        build_table(TASK, tmp_path, workers=1)
        assert other.wait(timeout=200) == 0
    finally:
        ended.set()
        looking.join()
    assert len(first_seen) == len(DESIGN.units())
    assert finished(tmp_path) == first_seen, "a unit was computed twice"
    assert_same_table(tmp_path, tiny_folder())


CLAIM = """
import sys
from pathlib import Path
from fedhpo_gym.building.build import claim

with claim(Path(sys.argv[1]), [0, 2]) as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


def test_a_unit_of_another_build_is_left_to_it_until_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "claim.py"
    script.write_text(CLAIM, encoding="utf-8")
    other = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    work, units = build.UnitWork(DESIGN, tmp_path, "cpu"), DESIGN.units()
    assert not work(units[0], lambda: None)
    assert work(units[1], lambda: None)
    other.kill()  # it never gave its claim back
    other.communicate()
    assert work(units[0], lambda: None)
    assert {path.stem for path in tmp_path.glob("*.npz")} == {unit.name for unit in units[:2]}


def copy_of_parts(target: Path, *leave_out: str) -> Path:
    """Return a folder with the finished units of the tiny table, but for some."""
    parts = parts_of(target)
    parts.mkdir(parents=True)
    for path in parts_of(tiny_folder()).glob("*.npz"):
        if path.stem not in leave_out:
            (parts / path.name).write_bytes(path.read_bytes())
    return target


def test_a_build_killed_while_writing_the_table_writes_it_anew(tmp_path: Path) -> None:
    folder = copy_of_parts(tmp_path)
    (folder / f".{NAME}.table.npz.0123.part").write_bytes(b"half")
    (folder / f"{NAME}.table.npz").write_bytes(b"of a card that never came")
    build_table(TASK, folder, workers=1)
    assert_same_table(folder, tiny_folder())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_loses_a_worker_builds_the_same_table(
    tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = cluster
    left_out = [unit.name for unit in DESIGN.units()][:4]
    folder, before = copy_of_parts(tmp_path / "built", *left_out), len(DESIGN.units()) - 4

    def kill_one() -> None:
        wait_for(lambda: len(finished(folder)) > before)
        workers[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    build_table(TASK, folder, workers=2, address=address)
    killer.join()
    assert workers[0].wait() != 0
    assert_same_table(folder, tiny_folder())


def test_an_address_without_a_scheduler_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    for name in ("estimate", "compute_units"):
        monkeypatch.setattr(f"fedhpo_gym.building.build.{name}", lambda *_: pytest.fail("trained"))
    with pytest.raises(InvalidArgumentError, match=r"`--address` must .* got 'no address'"):
        build_table(TASK, tmp_path, workers=1, address="no address")


def asked_units(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will hold the names of the units that are computed."""
    asked: list[str] = []

    def compute(design: object, units: object, parts: Path, *_: object) -> None:
        for unit in units:  # type: ignore[attr-defined]
            asked.append(unit.name)
            build.compute_unit(design, unit, parts)  # type: ignore[arg-type]

    patch.setattr("fedhpo_gym.building.build.compute_units", compute)
    return asked


def test_only_what_is_missing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_parts(tmp_path, "seed2-batch256")
    asked = asked_units(monkeypatch)
    build_table(TASK, folder, workers=1)
    assert asked == ["seed2-batch256"]
    assert_same_table(folder, tiny_folder())


def test_a_damaged_unit_is_named_and_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of_parts(tmp_path)
    flipped, swapped = (parts_of(folder) / f"seed{seed}-batch32.npz" for seed in (1, 2))
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    swapped.write_bytes((parts_of(folder) / "seed3-batch32.npz").read_bytes())
    asked = asked_units(monkeypatch)
    build_table(TASK, folder, workers=1)
    assert set(asked) == {flipped.stem, swapped.stem}
    said = capsys.readouterr().err
    for path in (flipped, swapped):
        assert f"{path} is damaged" in said
        assert path.with_name(f"{path.name}.damaged").exists()
    assert_same_table(folder, tiny_folder())


def test_a_unit_that_may_not_be_read_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of_parts(tmp_path)
    before = set(parts_of(folder).iterdir())
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1000")
    with pytest.raises(TooLargeError, match="1,000 may be read"):
        build_table(TASK, folder, workers=1)
    assert set(parts_of(folder).iterdir()) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(design_module().training, "engine_version", lambda _: 99),
        lambda patch: patch.setattr(
            design_module(), "load_dataset", lambda _: type("T", (), {"fingerprint": "other"})
        ),
    ],
    ids=["engine", "data"],
)
def test_parts_of_another_engine_or_other_data_are_not_used(
    change: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of_parts(tmp_path)
    change(monkeypatch)  # type: ignore[operator]
    asked: list[int] = []

    def stop(_task: object, units: list[object], *_: object) -> None:
        asked.append(len(units))
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhpo_gym.building.build.compute_units", stop)
    with pytest.raises(KeyboardInterrupt):
        build_table(TASK, folder, workers=1)
    assert asked == [len(DESIGN.units())]


def design_module() -> object:
    return sys.modules["fedhpo_gym.building.design"]


def test_every_variant_has_parts_of_its_own() -> None:
    variants = [
        TASK,
        TASK.variant(alpha=1.0),
        TASK.variant(algorithm="fedopt"),
        TASK.variant(preprocessing="standardized"),
        TASK.variant(seeds=(1, 2)),
        tiny_task(rounds=4),
    ]
    assert len({GridDesign(task).parts_name for task in variants}) == len(variants)


def test_units_cover_the_grid_once() -> None:
    space = TASK.space.discretized()
    rates = TASK.fidelity_space["client_sample_rate"].grid
    seen = np.zeros((*space.grid_shape, len(rates), len(TASK.seeds)), dtype=int)
    for unit in DESIGN.units():
        courses = DESIGN.courses(unit)
        index = np.arange(len(courses)).reshape(DESIGN.shape(unit))
        seen[DESIGN.place(unit)] += 1
        for position in np.ndindex(*index.shape):
            course = courses[index[position]]
            assert course.seed == unit.seed
            assert course.configuration["batch_size"] == dict(unit.fixed)["batch_size"]
            assert course.client_sample_rate == rates[position[-1]]
            for name, i in zip(space.names, position, strict=False):
                if name != "batch_size":
                    assert course.configuration[name] == space[name].grid[i]
    assert (seen == 1).all()


def test_the_card_says_where_its_numbers_come_from() -> None:
    card = json.loads((tiny_folder() / f"{NAME}.table.json").read_text())
    wanted = {"engine_version", "data_fingerprint", "seeds", "hardware", "created", "software"}
    wanted |= {"data_licence", "data_citation", "problem_citation", "build_command", "missing"}
    assert wanted <= set(card)
    assert "rounds" in card["missing"]
    assert card["rounds_trained"] == TASK.max_round
    assert sum(card["class_shares"]) == pytest.approx(1.0)


@pytest.mark.parametrize("number", [0, -1])
def test_a_build_needs_a_worker(number: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"`workers`.*at least 1.*{number}"):
        build_table(TASK, tmp_path, workers=number)


def test_a_task_with_other_metrics_than_were_measured_is_not_stored_under_wrong_names() -> None:
    measured = np.zeros((1, 2, 3, 3, 3))
    rounds, samples = np.array([1, 2]), np.ones((3, 3), np.int64)
    for axes in ((SPLITS, METRICS[:2]), (("val", "test"), METRICS)):
        with pytest.raises(InvalidArgumentError, match="`axes` must name 3 splits and 3 metrics"):
            list(encode_curves(measured, rounds, rounds, samples, axes))
