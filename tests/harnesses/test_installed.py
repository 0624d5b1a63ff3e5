"""Each library in an environment of its own, where the tests beside this one run unskipped."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("FEDHPO_GYM_HARNESSES", "")
TESTED = {
    "optunahub": "optunahub",
    "carps": "carps",
    "syne-tune": "syne_tune",
    "minari": "minari",
    "croissant": "croissant",
}


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", TESTED)
@pytest.mark.skipif(
    not FOLDER, reason="set FEDHPO_GYM_HARNESSES to a folder for environments, 5 GB"
)
def test_a_harness_runs_under_its_library(extra: str) -> None:
    """The environment is made where it is not there yet; an old one is made anew by deleting it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"][extra]
    home = Path(FOLDER).absolute() / extra
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        tools = ["pytest", "pytest-timeout", "hypothesis"]
        pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, *needed, *tools], check=True)
    tests = [f"tests/harnesses/test_{name}.py" for name in ("problem", TESTED[extra])]
    env = {**os.environ, "HOME": str(home)}
    run = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not raw", *tests]
    said = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
    assert "skipped" not in said.stdout
