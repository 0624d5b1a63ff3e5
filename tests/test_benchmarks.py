"""Every benchmark can be called; what they measure is no question of tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

for needed in ("torch", "sklearn", "pyarrow"):
    pytest.importorskip(needed)

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
COMMANDS = sorted(p for p in FOLDER.glob("*/*.py") if "Parser(" in p.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_command_says_what_it_takes(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "path", [*map(str, {FOLDER, *(p.parent for p in COMMANDS)}), *sys.path]
    )
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(path.stem).main()
    assert "--out" in capsys.readouterr().out
