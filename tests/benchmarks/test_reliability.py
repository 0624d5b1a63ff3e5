"""The attacks of the reliability table: a sample finds nothing, and what is planted is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedhpo_gym.evaluation.records import Fidelity

pytest.importorskip("torch")
pytest.importorskip("sklearn")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "reliability"

KINDS = {"cards", "conversations", "records", "damaged", "forged", "bad", "killed", "two"}
KINDS |= {"interrupted", "soak"}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.raw
@pytest.mark.slow
def test_a_sample_of_the_attacks_finds_no_fault(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    command = [sys.executable, str(FOLDER / "reliability.py"), "--sample", f"--out={out}"]
    environ = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=280)
    text = out.read_text(encoding="utf-8")
    table, _, faults = text.partition("## Soak")
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    rows = {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in lines[2:]}
    assert rows.pop("all")[0] > 1000
    assert {name.partition(":")[0].split()[0] for name in rows} >= KINDS
    assert [name for name, numbers in rows.items() if any(numbers[3:])] == [], faults


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
    from attacks import verdicts

    def case(number: int) -> tuple[str, str]:
        return verdicts.judged(lambda: str(planted()) if number == 1 else "fine")

    monkeypatch.setattr(verdicts, "LIMIT_S", 0.5)
    assert verdicts.run_cases("planted", 3, case).counts == {"fine": 2, kind: 1}


def test_a_reader_that_checks_nothing_is_silent(tmp_path: Path) -> None:
    from attacks.files import Kind
    from attacks.readers import fuzz

    def make(folder: Path) -> None:
        (folder / "a.bin").write_bytes(bytes(range(200)))

    kind = Kind("unchecked", make, lambda folder: (folder / "a.bin").read_bytes())
    found = fuzz(kind, 0, 60, 0, tmp_path)
    assert found.counts["silent"] > 50
    assert found.counts == fuzz(kind, 0, 60, 0, tmp_path).counts, "the damage is seeded"
