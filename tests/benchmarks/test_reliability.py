"""The attacks of the reliability table: a sample finds nothing, and what is planted is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.raw
@pytest.mark.slow
def test_a_sample_of_the_attacks_finds_no_fault(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    command = [sys.executable, str(FOLDER / "reliability.py"), "--sample", f"--out={out}"]
    environ = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=280)
    text = out.read_text(encoding="utf-8")
    table, _, faults = text.partition("## Soak")
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    rows = {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in lines[2:]}
    assert rows.pop("all")[0] > 1000
    kinds = (
        "cards",
        "conversations",
        "records that",
        "damaged",
        "forged",
        "bad calls",
        "killed",
        "two writers",
        "interrupted",
        "soak",
    )
    assert all(any(name.startswith(kind) for name in rows) for kind in kinds)
    assert [name for name, numbers in rows.items() if any(numbers[3:])] == [], faults


def tally_of(case: Any, count: int = 3) -> dict[str, int]:
    from attacks.verdicts import run_cases

    return dict(run_cases("planted", count, case).counts)


def test_a_case_without_an_end_is_hung_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attacks import verdicts

    monkeypatch.setattr(verdicts, "LIMIT_S", 0.5)

    def case(number: int) -> tuple[str, str]:
        if number == 1:
            time.sleep(60.0)
        return "fine", ""

    assert tally_of(case) == {"fine": 2, "hung": 1}


def test_a_process_that_ends_is_no_documented_error() -> None:
    def case(number: int) -> tuple[str, str]:
        if number == 0:
            os._exit(3)
        return "fine", ""

    assert tally_of(case) == {"undocumented": 1, "fine": 2}


def test_a_case_that_takes_too_much_memory_is_told() -> None:
    from attacks.verdicts import ROOM, judged

    def grow() -> str:
        return str(len(bytearray(2 * ROOM)))

    assert tally_of(lambda _: judged(grow)) == {"memory": 3}


def test_only_errors_of_this_package_are_documented() -> None:
    from attacks.verdicts import judged

    from fedhpo_gym.errors import DamagedDataError

    def damaged() -> str:
        raise DamagedDataError("x")

    def other() -> str:
        raise KeyError("x")

    assert judged(damaged)[0] == "documented"
    assert judged(other)[0] == "undocumented"


def test_a_reader_that_checks_nothing_is_silent(tmp_path: Path) -> None:
    from attacks.files import Kind
    from attacks.readers import fuzz

    def make(folder: Path) -> None:
        (folder / "a.bin").write_bytes(bytes(range(200)))

    kind = Kind("unchecked", make, lambda folder: (folder / "a.bin").read_bytes())
    found = fuzz(kind, 0, 60, 0, tmp_path)
    assert found.counts["silent"] > 50
    assert found.counts == fuzz(kind, 0, 60, 0, tmp_path).counts, "the damage is seeded"
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_not_atomic_loses_something(tmp_path: Path) -> None:
    from attacks.writers import killed
    from attacks.writing import Writer

    def write(folder: Path, number: int) -> None:
        with (folder / "a").open("w", encoding="utf-8", buffering=1) as handle:
            for _ in range(50):
                handle.write(f"{number}\n")
                time.sleep(1e-4)

    def read(folder: Path) -> int:
        lines = (folder / "a").read_text(encoding="utf-8").splitlines()
        if len(lines) != 50:
            raise ValueError(len(lines))
        return int(np.unique(np.array(lines, int)).item())

    torn = Writer("torn", write, read, lambda folder: (folder / "a").exists())
    assert killed(0, torn, 12, 0, tmp_path).counts["lost"] > 0
