"""Names in docstrings are those of today's code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
ELSEWHERE = ".federatedscope.peer"  # of another interpreter: names there are its own


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
        if ELSEWHERE not in name
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
