"""The compute queue: in order, resumed where it was, and on top of what is stored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

from fedhpo_gym.building import compute_queue
from fedhpo_gym.building.build import build_sample, compute_unit
from fedhpo_gym.building.compute_queue import (
    SECONDS,
    make_parts,
    parts_of,
    progress_of,
    read_queue,
    store_queue,
    train_queue,
)
from fedhpo_gym.building.sample import SampleDesign
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import MAX_TOML_BYTES
from fedhpo_gym.data import load_dataset
from fedhpo_gym.stored.catalogue import ENV_VAR, open_sample
from fedhpo_gym.tasks import get_task
from workers import CrewHere

pytestmark = pytest.mark.raw

LIST = """
[[sample]]
ids = ["FedHPO-LR-BreastCancer-v1", "FedHPO-LR-Digits-v1"]
algorithm = "fedprox"
configurations = {number}
rounds = 3
rates = [0.4, 1.0]
repeat_every = 4
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.building.build.WorkerPool", CrewHere)


in_this_process = pytest.mark.usefixtures("same_process")


def queue_file(folder: Path, number: int = 6) -> Path:
    path = folder / "list.toml"
    path.write_text(LIST.format(number=number), encoding="utf-8")
    return path


def train(path: Path, folder: Path) -> list[str]:
    said: list[str] = []
    assert train_queue(read_queue(path), folder, 1, "cpu", said.append) == 0
    return said


def sample_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.sample.*.npz")}


def test_a_list_is_trained_in_its_order_and_only_once(tmp_path: Path) -> None:
    path = queue_file(tmp_path)
    first = train(path, tmp_path)
    courses = (6 + 2 * 2) * 2  # two of the six under two more seeds, at two rates
    assert first == [
        f"[1/2] LR-BreastCancer-v1-fedprox-standardized: {courses} courses to train",
        f"[2/2] LR-Digits-v1-fedprox-standardized: {courses} courses to train",
    ]
    assert train(path, tmp_path) == []


@in_this_process
def test_what_was_interrupted_goes_on_with_the_same_result(tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    design, _ = read_queue(queue_file(tmp_path))
    train(queue_file(tmp_path), whole)
    parts = make_parts(design, parted)
    unit = design.units()[0]
    compute_unit(design, unit, parts)
    begun = progress_of(design, parted)
    assert (begun.trained, begun.state) == (len(unit.points), "begun")
    said = train(queue_file(tmp_path), parted)
    assert f": {design.size - len(unit.points)} courses to train" in said[0]
    for folder in (whole, parted):
        assert (
            len([*store_queue(read_queue(queue_file(tmp_path)), folder, folder, folder, 1, print)])
            == 2
        )
    assert sample_files(whole) == sample_files(parted)


@in_this_process
def test_a_sample_that_is_stored_is_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: the units are gone, and the stored sample is all there is."""
    stored, elsewhere = tmp_path / "stored", tmp_path / "elsewhere"
    train(queue_file(tmp_path, 4), stored)
    list(store_queue(read_queue(queue_file(tmp_path, 4)), stored, stored, stored, 1, print))
    monkeypatch.setenv(ENV_VAR, str(stored))
    assert all(design.is_published for design in read_queue(queue_file(tmp_path, 4)))
    assert train(queue_file(tmp_path, 4), elsewhere) == []
    design, _ = read_queue(queue_file(tmp_path, 9))
    assert not design.is_published
    known = (4 + 2) * 2
    assert progress_of(design, elsewhere).trained == known
    train(queue_file(tmp_path, 9), elsewhere)
    rows = [n for path in parts_of(design, elsewhere).glob("*.npz") for n in [path.stem]]
    assert sum(map(design.points_in, rows)) == design.size - known
    extended = elsewhere / "extended"
    list(store_queue(read_queue(queue_file(tmp_path, 9)), elsewhere, extended, extended, 1, print))
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "none"))
    at_once = tmp_path / "at_once"
    train(queue_file(tmp_path, 9), at_once)
    list(store_queue(read_queue(queue_file(tmp_path, 9)), at_once, at_once, at_once, 1, print))
    assert sample_files(extended) == sample_files(at_once)
    cards = [next(f.glob("LR-Breast*.sample.json")) for f in (extended, at_once)]
    assert (
        json.loads(cards[0].read_text())["card_sha256"]
        == (json.loads(cards[1].read_text())["card_sha256"])
    )


@in_this_process
def test_a_sample_of_other_depths_is_extended_by_curves_that_go_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stored courses end at round 2, so rounds 3 and 4 are new to the sample."""
    task = get_task("LR-BreastCancer-v0").variant(alpha=0.3)
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    depths, rates = [2, 4], [0.4, 1.0]
    design = SampleDesign(task, 96, depths, rates)
    parts = tmp_path / "parts" / design.parts_name
    parts.mkdir(parents=True)
    short = [unit for unit in design.units() if design.evaluated_rounds(unit.name)[-1] == 2]
    for unit in short:
        compute_unit(design, unit, parts)
    design.consolidate(parts, tmp_path)
    before = open_sample(task.identity)
    assert before.rounds == (1, 2)
    for path in parts.glob("*.npz"):
        path.unlink()
    build_sample(task, 96, rounds=depths, rates=rates, folder=tmp_path, workers=1)
    after = open_sample(task.identity)
    assert (len(after), after.rounds) == (96, (1, 2, 3, 4))
    old = np.isin(after.codes("point"), before.codes("point"))
    np.testing.assert_array_equal(
        after.objective()[old][:, :2], before.objective(), err_msg="codes are taken over"
    )
    assert np.isnan(after.objective()[old][:, 2:]).all()
    assert np.isfinite(after.objective()[~old][:, 2:]).all()


@in_this_process
def test_another_plan_does_not_count_as_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = get_task("LR-BreastCancer-v1").variant(algorithm="fedprox")
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    build_sample(task, 4, rounds=2, rates=[0.4, 1.0], crossed=True, folder=tmp_path, workers=1)
    for rounds, rates in ((3, (0.4, 1.0)), (2, (0.4, 0.8))):
        other = SampleDesign(task, 4, rounds, rates, crossed=True)
        assert other.done(tmp_path / "nothing") == set()
    same = SampleDesign(task, 4, 2, (0.4, 1.0), crossed=True)
    assert same.done(tmp_path / "nothing") == set(range(8))


@pytest.mark.parametrize(("rounds", "rates"), [((2, 3), (0.4, 1.0)), (2, (0.4, 0.4))])
def test_a_crossed_design_has_one_depth_and_each_rate_once(rounds: Any, rates: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`rounds` must be one number and `rates`"):
        SampleDesign(get_task("LR-BreastCancer-v1"), 4, rounds, rates, crossed=True)


@in_this_process
def test_status_and_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["queue", str(queue_file(tmp_path)), "--out", str(tmp_path / "work")]
    assert main([*words, "--status"]) == 0
    out = capsys.readouterr().out
    assert "LR-Digits-v1-fedprox-standardized" in out
    assert "0 of 2 samples done" in out
    assert "not known" in out
    assert main([*words, "--only", "Digits"]) == 0
    assert main([*words, "--status"]) == 0
    rows = capsys.readouterr().out.splitlines()
    digits = next(row for row in rows if row.startswith("LR-Digits"))
    assert digits.split()[1:3] == ["20/20", "done"]
    assert "1 of 2 samples done" in rows[-1]
    cards, arrays = tmp_path / "cards", tmp_path / "arrays"
    cards.mkdir()
    arrays.mkdir()
    old = arrays / "LR-Digits-v1-fedprox-standardized.sample.0123456789abcdef.npz"
    old.write_bytes(b"former")
    assert main([*words, "--store", str(cards), "--arrays", str(arrays)]) == 0
    [card] = cards.iterdir()
    assert capsys.readouterr().out.split() == [str(card)]
    assert [path.name for path in arrays.iterdir()] == [json.loads(card.read_text())["arrays"]]
    assert main([*words, "--store", str(cards), "--only", "BreastCancer"]) == 0
    assert "no sample has new courses and 40 configurations" in capsys.readouterr().err
    for wrong in (["--arrays", str(arrays)], ["--status", "--store", str(cards)]):
        assert main([*words, *wrong]) == ERROR
        assert "`--arrays` must come with `--store`" in capsys.readouterr().err
    assert main([*words, "--workers", "0"]) == ERROR
    assert "`--workers` must be at least 1, got 0" in capsys.readouterr().err


@in_this_process
def test_damaged_files_are_set_aside_and_the_rest_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(queue_file(tmp_path), tmp_path)
    first, second = read_queue(queue_file(tmp_path))
    damaged = next(parts_of(first, tmp_path).glob("*.npz"))
    lost = first.points_in(damaged.stem)
    damaged.write_bytes(b"junk")
    with (parts_of(second, tmp_path) / SECONDS).open("ab") as notes:
        notes.write(b"\xff")
    cards = tmp_path / "cards"
    assert len([*store_queue(read_queue(queue_file(tmp_path)), tmp_path, cards, cards, 1, print)])
    assert f"{damaged.name} is damaged" in capsys.readouterr().err
    assert progress_of(first, tmp_path).trained == first.size - lost
    assert progress_of(second, tmp_path).state == "done"
    assert {path.name.partition(".")[0] for path in cards.glob("*.json")} == {
        first.task.table_name,
        second.task.table_name,
    }


@in_this_process
def test_status_needs_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a folder that another machine shares, which may be without network."""
    work = tmp_path / "work"
    words = ["queue", str(queue_file(tmp_path)), "--out", str(work)]
    train(queue_file(tmp_path), work)
    monkeypatch.setattr("fedhpo_gym.building.design.load_dataset", None)
    assert main([*words, "--status"]) == 0
    assert "2 of 2 samples done" in capsys.readouterr().out


@in_this_process
def test_what_was_trained_on_other_data_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a table of one's own that has changed since."""
    train(queue_file(tmp_path), tmp_path)
    cards, messages = tmp_path / "cards", list[str]()
    real = load_dataset

    def changed(name: str) -> Any:
        return replace(real(name), fingerprint="0" * 64)

    monkeypatch.setattr("fedhpo_gym.building.design.load_dataset", changed)
    designs = read_queue(queue_file(tmp_path))
    assert not [*store_queue(designs, tmp_path, cards, cards, 1, messages.append)]
    assert messages[0].startswith("no sample has new courses")


@in_this_process
def test_units_note_their_seconds(tmp_path: Path) -> None:
    design, _ = read_queue(queue_file(tmp_path))
    train(queue_file(tmp_path), tmp_path)
    lines = (parts_of(design, tmp_path) / SECONDS).read_text().splitlines()
    names = [line.split()[0] for line in lines]
    assert sorted(names) == sorted(path.stem for path in parts_of(design, tmp_path).glob("*.npz"))
    spent = progress_of(design, tmp_path).core_s
    assert spent == pytest.approx(sum(float(line.split()[1]) for line in lines))
    assert progress_of(design, tmp_path).left_s == 0.0


def test_what_another_process_trains_is_running(tmp_path: Path) -> None:
    design, _ = read_queue(queue_file(tmp_path))
    parts = make_parts(design, tmp_path)
    compute_unit(design, design.units()[0], parts)
    assert progress_of(design, tmp_path).state == "begun"
    point = design.missing(parts)[0].points[0]
    program = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.lockf(f, fcntl.LOCK_EX, 1, int(sys.argv[2])); print('held', flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(parts / "claims"), str(point)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert progress_of(design, tmp_path).state == "running"
        other.communicate("done\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "list.toml must contain tables `[[sample]]`, in double brackets, and nothing else"),
        ("[sample]\nids = []\n", "list.toml must contain tables `[[sample]]`, in double brackets"),
        (
            "[[sample]]\nids = ['FedHPO-LR-Car-v1']\nrounds = 3\n",
            "entry 1: `[[sample]]` must be given 'config",
        ),
        (LIST.format(number=3) + LIST.format(number=0), "list.toml, entry 2: "),
        (LIST.format(number=0), "configurations"),
        (LIST.format(number=3) + "colour = 'red'\n", "colour"),
        (LIST.format(number=3).replace("BreastCancer", "Nowhere"), "Nowhere"),
        (LIST.format(number=3).replace("rounds = 3", "rounds = 501"), "rounds"),
        (LIST.format(number=3) + "precision = 'float16'\n", "`precision` must be 'float32'"),
        ("[[sample]]\nids = []\nconfigurations = 3\nrounds = 3\nrates = [1.0]\n", "`ids` must"),
        ("a = [", "list.toml must be a TOML file: "),
        (
            LIST.format(number=3) + "#" * (1 << 20),
            "list.toml must be a TOML file: it must have at most 524,288",
        ),
    ],
)
@in_this_process
def test_a_list_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        read_queue(path)
    assert main(["queue", str(path), "--out", str(tmp_path)]) == ERROR
    assert words in capsys.readouterr().err


def test_the_list_of_the_repository_can_be_read() -> None:
    names = [design.parts_name for design in read_queue(ROOT / "numbers.toml") if not _away(design)]
    assert names
    assert (ROOT / "numbers.toml").stat().st_size < MAX_TOML_BYTES


def _away(design: SampleDesign) -> bool:
    return design.task.dataset not in ("BreastCancer", "Digits")  # those that come with a package


@in_this_process
def test_a_smaller_sample_never_takes_the_place_of_a_larger_one(tmp_path: Path) -> None:
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text(LIST.format(number=6), encoding="utf-8")
    other = LIST.format(number=3).replace("rounds = 3", "rounds = 2")
    small.write_text(LIST.format(number=6) + other, encoding="utf-8")
    train(small, tmp_path)
    cards, said = tmp_path / "cards", list[str]()
    store = (tmp_path, cards, cards, 1, said.append)
    assert len([*store_queue(read_queue(large), *store)]) == 2
    before = {path.name: path.read_bytes() for path in cards.iterdir()}
    assert [*store_queue(read_queue(small), *store)] == []
    assert {path.name: path.read_bytes() for path in cards.iterdir()} == before
    assert all("stays: it has 20 courses of another plan, and this 10" in one for one in said)


@in_this_process
def test_a_drawn_sample_without_a_surrogate_gives_way_to_a_crossed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = read_queue(queue_file(tmp_path))
    cards = tmp_path / "cards"
    for design in (first, second):
        build_sample(design.task, 30, rounds=2, rates=[1.0], folder=cards, workers=1)
    train(queue_file(tmp_path), tmp_path)
    kept = second.task.table_name
    monkeypatch.setattr(compute_queue, "has_surrogate", lambda name: name == kept)
    stored = [*store_queue([first, second], tmp_path, cards, cards, 1, lambda _: None)]
    assert [card.name for card in stored] == [f"{first.task.table_name}.sample.json"]
    assert json.loads(stored[0].read_text())["crossed"]


@in_this_process
def test_a_torn_note_of_seconds_is_passed_over(tmp_path: Path) -> None:
    design, _ = read_queue(queue_file(tmp_path))
    train(queue_file(tmp_path), tmp_path)
    known = progress_of(design, tmp_path).core_s
    with (parts_of(design, tmp_path) / SECONDS).open("a") as handle:
        handle.write("points-3")
    assert progress_of(design, tmp_path).core_s == known


@in_this_process
def test_a_word_that_no_name_holds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["queue", str(queue_file(tmp_path)), "--out", str(tmp_path), "--only", "Nothing"]
    assert main([*words, "--status"]) == ERROR
    assert "`--only` must be a part of the name" in capsys.readouterr().err
