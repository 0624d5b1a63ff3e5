"""Small models are built where torch is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

PROGRAM = """
import sys
sys.modules["torch"] = None
if __name__ == "__main__":
    from fedhpo_gym.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
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


@pytest.mark.raw
def test_logistic_regression_is_built_without_torch(tmp_path: Path) -> None:
    words = ("--sample", "2", "--rounds", "2", "--workers", "1")
    done = build(tmp_path, "FedHPO-LR-CreditG-v1", *words)
    assert done.returncode == 0, done.stderr
    card = json.loads(Path(done.stdout.split()[-1]).read_text(encoding="utf-8"))
    assert "equal bits alone and in any batch" in card["hardware"]
