"""The README: short, and what it says to type works, in its order, in a fresh checkout."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fedhpo_gym.cli import main
from workers import CrewHere

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache", ".hypothesis")
LESS = {" small ": " FedHPO-LR-CreditG-v1 FedHPO-LR-Car-v1 ", "--seeds 3 ": "--seeds 1 "}
"""What the demonstrations of the copy do instead."""
STAMPS = (".venv", ".venv-demo")


def steps() -> list[tuple[str, str]]:
    """Return all that the README says to run: ("python", code) or ("sh", a command)."""
    found: list[tuple[str, str]] = []
    for language, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        lines = text.splitlines()
        found += [("python", text)] if language == "python" else [("sh", line) for line in lines]
    return found


def fresh_checkout(folder: Path) -> dict[str, str]:
    """Copy the checkout, as if `make` had installed this interpreter; return its environment.

    A `make` that runs the tests would make the README's `make` say which folders it enters. Its
    demonstrations have fewer problems and seeds: what they find is not the question here.
    """
    shutil.copytree(ROOT, folder, ignore=LEFT)
    rules = (folder / "Makefile").read_text(encoding="utf-8")
    for asked, less in LESS.items():
        assert asked in rules
        rules = rules.replace(asked, less)
    (folder / "Makefile").write_text(rules, encoding="utf-8")
    for name in STAMPS:
        (folder / name / "bin").mkdir(parents=True)
        for tool, words in (("python", ""), ("fedhpo-gym", " -m fedhpo_gym")):
            script = folder / name / "bin" / tool
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        (folder / name / ".installed").write_text("auto\n", encoding="utf-8")
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ours = {"MPLBACKEND": "Agg", "PYTHONHASHSEED": "random", "WORKERS": "1"}
    return {**own, **ours, "PATH": path, "PYTHONPATH": str(folder)}


def run(kind: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a step and return what it says: our command in this process, which has all libraries."""
    if text.startswith("fedhpo-gym "):
        said = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(said):
            assert main(shlex.split(text, comments=True)[1:]) == 0, text
        return said.getvalue()
    command = [sys.executable, "-c", text] if kind == "python" else ["sh", "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_is_short_and_has_three_examples() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert [kind for kind, _ in steps()].count("python") == 3
    commands = [text for kind, text in steps() if kind == "sh"]
    assert [text.split()[0] for text in commands] == ["make"] * 2 + ["fedhpo-gym"] * 5


@pytest.mark.slow
@pytest.mark.raw
@pytest.mark.usefixtures("no_pictures")
def test_everything_in_the_readme_runs_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    for name, few in {"MAX_QUERIES": 300, "DRAWS": 200, "STARTS": 4}.items():
        monkeypatch.setattr(f"fedhpo_gym.envs.trial.truth.{name}", few)
    folder = tmp_path / "checkout"
    environment, snippets = fresh_checkout(folder), {}
    for kind, text in steps():
        said = run(kind, text, folder, environment)
        if kind == "python":
            snippets[text] = said
        if text.startswith("make"):
            page = folder / "runs" / text.split()[1] / "report.html"
            assert page.is_file()
            verdicts = [a for a, b in pairwise(said.splitlines()) if b.startswith("By how much:")]
            assert verdicts
            assert len({*verdicts}) == len(verdicts), "each names its measure"
            assert said.splitlines()[-1] == f"Open {page.relative_to(folder)} in a browser."
    first = next(iter(snippets))
    assert "val_loss" in snippets[first]
    assert run("python", first, folder, environment) == snippets[first], "another hash seed"


def test_a_step_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit 3"):
        run("sh", "exit 3", tmp_path, dict(os.environ))
