"""The guides: their examples run, and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
GUIDES = [*sorted((REPOSITORY / "docs").rglob("*.md")), *sorted(REPOSITORY.glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def missing_links(guide: Path) -> list[str]:
    targets = LINK.findall(guide.read_text(encoding="utf-8"))
    return [target for target in targets if not (guide.parent / target).exists()]


def failed_examples(guide: Path) -> int:
    return doctest.testfile(str(guide), module_relative=False, encoding="utf-8").failed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide: Path) -> None:
    assert missing_links(guide) == []


@pytest.mark.parametrize(
    "guide", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda path: path.name
)
def test_examples_print_what_they_say(guide: Path) -> None:
    assert failed_examples(guide) == 0


def test_the_first_snippet_of_the_readme_prints_the_same_twice(
    run_python: Callable[..., str],
) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    snippet = readme.partition("```python\n")[2].partition("```")[0]
    assert "val_loss" in run_python(snippet)
    assert run_python(snippet) == run_python(snippet)


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text("[gone](gone.md)\n\n>>> 1 + 1\n3\n", encoding="utf-8")
    assert missing_links(guide) == ["gone.md"]
    assert failed_examples(guide) == 1
