"""The guides: their examples run, their links and paths lead somewhere, their lines are short."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import import_contract as contract

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = (REPOSITORY, REPOSITORY / contract.PACKAGE)
MADE = REPOSITORY / "docs" / "made"
"""Where `make docs` writes pages, whose links Sphinx checks."""
WRITTEN = [page for page in sorted((REPOSITORY / "docs").rglob("*.md")) if MADE not in page.parents]
GUIDES = [*WRITTEN, *sorted(REPOSITORY.glob("*.md"))]
PRESENT = [guide for guide in GUIDES if guide.name != "CHANGELOG.md"]
"""The guides that say how things are; the changelog also names what is gone."""
RESULTS = sorted((REPOSITORY / "benchmarks" / "results").glob("*.md"))
PROGRAM = re.compile(r"\bpython (\S+\.py)")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?!~|/)[\w.<>*{},-]*(?:/[\w.<>*{},-]*)+|[\w<>*-]+\.(?:py|md|toml|txt|cff)")
FORM = re.compile(r"<\w+>|\{[\w,]+\}")
ELSEWHERE = frozenset({"meta/", "parts/", "runs/", "runs/bench"})
"""Folders that commands make."""
COLUMNS = 100


def missing_links(guide: Path) -> list[str]:
    targets = LINK.findall(guide.read_text(encoding="utf-8"))
    return [target for target in targets if not (guide.parent / target).exists()]


def missing_paths(guide: Path) -> list[str]:
    """Return the repository paths in a guide's code words that lead nowhere.

    They are read from the root, from the package, or from the guide's own folder; a bare file name
    may lie anywhere. `<name>` and `{a,b}` stand for any words.
    """
    words = CODE.findall(guide.read_text(encoding="utf-8"))
    asked = {word for word in words if PATH.fullmatch(word)} - ELSEWHERE
    return sorted(word for word in asked if not _exists(FORM.sub("*", word), guide.parent))


def _exists(pattern: str, folder: Path) -> bool:
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    return any(any(root.glob(pattern.rstrip("/"))) for root in (*ROOTS, folder))


def long_lines(guide: Path) -> list[str]:
    """Return the lines of prose and code beyond 100 columns; tables and links cannot be wrapped."""
    lines = guide.read_text(encoding="utf-8").splitlines()
    long = (line for line in lines if len(line) > COLUMNS and not line.startswith("|"))
    return [line for line in long if "](" not in line.split()[-1]]


def unmade(page: Path, commands: str) -> list[str]:
    """Return the programs of a page of results that do not exist or that `commands` leaves out."""
    programs = PROGRAM.findall(page.read_text(encoding="utf-8")) or ["none"]
    names = {program: program.removeprefix("benchmarks/") for program in programs}
    return [p for p in names if not (REPOSITORY / p).is_file() or f"`{names[p]}" not in commands]


def layers_of(architecture: str) -> dict[str, frozenset[str]]:
    """Return the table of layers in ARCHITECTURE.md: what each part may import."""
    table = architecture.partition("\n## Layers\n")[2].partition("\n## ")[0]
    found = {}
    for row in re.findall(r"^\| (`.+) \|$", table, re.MULTILINE):
        parts, _, names = row.split(" | ")
        for part in CODE.findall(parts):
            allowed = contract.EVERYTHING if names == "everything" else CODE.findall(names)
            found[part.rstrip("/")] = frozenset(name.rstrip("/") for name in allowed)
    return found


def failed_examples(guide: Path) -> int:
    return doctest.testfile(str(guide), module_relative=False, encoding="utf-8").failed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide: Path) -> None:
    assert missing_links(guide) == []


@pytest.mark.parametrize("guide", PRESENT, ids=lambda path: path.name)
def test_paths_lead_somewhere(guide: Path) -> None:
    assert missing_paths(guide) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_lines_are_short(guide: Path) -> None:
    assert long_lines(guide) == []


@pytest.mark.parametrize("page", RESULTS, ids=lambda path: path.stem)
def test_every_result_is_made_by_a_program_that_is_here(page: Path) -> None:
    commands = (REPOSITORY / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert unmade(page, commands) == []


def test_every_claimed_result_names_its_programs() -> None:
    claims = tomllib.loads((REPOSITORY / "docs" / "claims.toml").read_text(encoding="utf-8"))
    for name, programs in claims["results"].items():
        page = (REPOSITORY / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
        assert PROGRAM.findall(page)[0] in programs, name


def test_the_layers_drawn_are_those_enforced() -> None:
    drawn = layers_of((REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    enforced = {part: names for part, names in contract.LAYERS.items() if part != "layer 0"}
    for part in contract.LAYER_0:
        enforced[part] = frozenset()
    enforced["fedhpo_gym/__init__.py"] = enforced.pop("root")
    assert drawn == enforced


@pytest.mark.parametrize("guide", WRITTEN, ids=lambda path: path.name)
def test_examples_print_what_they_say(guide: Path) -> None:
    assert failed_examples(guide) == 0


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    lines = ["[gone](gone.md) `agents/gone.py` `agents/<name>.py` `gone.py` `a / b`"]
    lines += ["x" * 101, f"| {'x' * 101} |", f"[{'x' * 101}](y)", "", ">>> 1 + 1", "3", ""]
    guide.write_text("\n".join(lines), encoding="utf-8")
    assert missing_links(guide) == ["gone.md", "y"]
    assert missing_paths(guide) == ["agents/gone.py", "gone.py"]
    assert long_lines(guide) == ["x" * 101]
    assert failed_examples(guide) == 1
    program = "benchmarks/structure/journeys.py"
    guide.write_text(f"- command: `python benchmarks/gone.py` `python {program}`")
    assert unmade(guide, "`gone.py`") == ["benchmarks/gone.py", program]
    guide.write_text("no command")
    assert unmade(guide, "") == ["none"]


def test_pages_say_what_the_last_runs_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make docs` does: a figure that was edited after its run fails here already."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "site"))
    claims = importlib.import_module("claims")
    monkeypatch.delitem(sys.modules, "claims")
    assert "| page | says |" in claims.page()
