"""The guides: their examples run, their links and paths lead somewhere, their lines are short."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import import_contract as contract

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = (REPOSITORY, REPOSITORY / contract.PACKAGE)
GUIDES = [*sorted((REPOSITORY / "docs").rglob("*.md")), *sorted(REPOSITORY.glob("*.md"))]
PRESENT = [guide for guide in GUIDES if guide.name != "CHANGELOG.md"]
"""The guides that say how things are; the changelog also names what is gone."""
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


def test_the_layers_drawn_are_those_enforced() -> None:
    drawn = layers_of((REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    enforced = {part: names for part, names in contract.LAYERS.items() if part != "layer 0"}
    for part in contract.LAYER_0:
        enforced[part] = frozenset()
    enforced["fedhpo_gym/__init__.py"] = enforced.pop("root")
    assert drawn == enforced


@pytest.mark.parametrize(
    "guide", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda path: path.name
)
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


# --- Names in docstrings are those of today's code.

ROOT = Path(__file__).resolve().parents[1]
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
PEER = ".federatedscope.peer"  # of another interpreter: names there are its own


def sources() -> dict[str, str]:
    """Return the source of every module of the package, by dotted name."""
    found = {}
    for path in sorted((ROOT / "fedhpo_gym").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


def _defined(nodes: Iterator[ast.AST]) -> set[str]:
    """Return what some code defines, imports, assigns, or takes as an argument."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(node.value.split(", "))  # names that are imported when they are asked for
    return found


def unresolved(modules: Mapping[str, str]) -> list[str]:
    """Return the dotted names in docstrings that name nothing of some modules."""
    trees = {name: ast.parse(source) for name, source in modules.items()}
    rooms = {name.split(".")[1] for name in trees if "." in name}
    names = {name: _defined(ast.walk(tree)) for name, tree in trees.items()}
    classes = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    members: dict[str, set[str]] = {}
    for one in classes:
        members.setdefault(one.name, set()).update(_defined(ast.walk(one)))
    for one in classes * 3:  # bases of bases
        for base in (ast.unparse(base).partition("[")[0] for base in one.bases):
            members[one.name] |= members.get(base.rpartition(".")[2], {"*"})

    def is_known(word: str) -> bool:
        first, *rest = word.split(".")
        if first in members:
            return rest[0] in members[first] or "*" in members[first] - {"Protocol"}
        if first in rooms:
            first, rest = "fedhpo_gym", [first, *rest]
        if first != "fedhpo_gym":
            return True
        module = first
        while rest and f"{module}.{rest[0]}" in names:
            module, rest = f"{module}.{rest[0]}", rest[1:]
        return not rest or rest[0] in names[module]

    return [
        f"{name}:{node.lineno}: {word}"
        for name, tree in trees.items()
        if PEER not in name
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for word in DOTTED.findall(node.value.value)
        if not is_known(word)
    ]


def test_names_in_docstrings_resolve() -> None:
    assert not unresolved(sources())


def test_a_name_of_yesterday_is_found() -> None:
    base = 'class Best:\n    """`objectives.base.Best`."""\n    score = 1'
    words = "'`objectives.costs.COST_NAMES`, `Best.worst`, `Best.score`.'"
    package = "fedhpo_gym"
    planted = {package: "", f"{package}.objectives": words, f"{package}.objectives.base": base}
    found = [line.rpartition(" ")[2] for line in unresolved(planted)]
    assert found == ["objectives.costs.COST_NAMES", "Best.worst"]
