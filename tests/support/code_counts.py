"""Counts of the source that `tests/test_names.py` keeps below its limits.

`python tests/support/code_counts.py` prints them; with `--places`, it also lists where each is.
"""

from __future__ import annotations

import ast
import functools
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedhpo_gym"

PARTICIPLES = frozenset(
    {"asked", "chosen", "drawn", "found", "given", "got", "heard", "kept", "known", "left", "made"}
    | {"moved", "named", "said", "seen", "shown", "spent", "taken", "told", "wanted"}
)
"""What happened to a value, which does not say what it is."""
VAGUE = frozenset({"number", "one", "own", "part", "place", "rest", "whole", "words"})
LONG_MODULE = 150
"""Lines above which a module opens with what it does, what calls it, and its main idea."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def modules(folder: Path = PACKAGE) -> dict[Path, str]:
    """Return the text of each Python file, by path."""
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


def local_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each function, with each name that it binds, arguments included."""
    for function in ast.walk(tree):
        if isinstance(function, Function | ast.Lambda):
            arguments = function.args
            listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            names = {argument.arg for argument in listed}
            body = function.body if isinstance(function, Function) else [function.body]
            names |= set(_bound_names(body))
            for name in sorted(names):
                yield function.lineno, name


def _bound_names(nodes: list[ast.AST] | list[ast.stmt] | list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue  # each has names of its own
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        yield from _bound_names(list(ast.iter_child_nodes(node)))


def names_in_two_modules(texts: dict[Path, str]) -> dict[str, list[str]]:
    """Return public functions and classes at the top of two modules or more, with the modules."""
    homes = defaultdict(list)
    for path, text in texts.items():
        for node in _parsed(text).body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(ROOT).as_posix())
    return {name: paths for name, paths in sorted(homes.items()) if len(paths) > 1}


def banned_locals(texts: dict[Path, str], banned: frozenset[str]) -> list[str]:
    """Return `path:line name` of each function that binds a banned name."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
        for path, text in texts.items()
        for line, name in local_names(_parsed(text))
        if name in banned
    ]


def short_openings(texts: dict[Path, str]) -> list[str]:
    """Return the long modules whose docstring has fewer than three sentences."""
    return [
        path.relative_to(ROOT).as_posix()
        for path, text in texts.items()
        if text.count("\n") > LONG_MODULE and sentences(ast.get_docstring(_parsed(text))) < 3
    ]


def sentences(docstring: str | None) -> int:
    """Return how many sentences a docstring has."""
    text = " ".join((docstring or "").split())
    return sum(text.count(end) for end in (". ", "? ", ": ")) + text.endswith((".", "?"))


def comment_lines(texts: dict[Path, str]) -> int:
    """Return the number of lines with a comment; directives to tools are none."""
    return sum(
        token.type == tokenize.COMMENT
        and not token.string.startswith(("# noqa", "# type:", "# pragma"))
        for text in texts.values()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def total_lines(texts: dict[Path, str]) -> int:
    """Return the number of lines of some files."""
    return sum(text.count("\n") for text in texts.values())


def report(with_places: bool) -> list[str]:
    """Return the counts as lines of text."""
    texts = modules()
    participles = banned_locals(texts, PARTICIPLES)
    listed = {
        "public functions and classes in two modules or more": [
            f"{name}: {', '.join(paths)}" for name, paths in names_in_two_modules(texts).items()
        ],
        "local names that are participles": participles,
        "local names that are vague": banned_locals(texts, VAGUE),
        f"modules above {LONG_MODULE} lines without an opening": short_openings(texts),
    }
    lines = []
    for title, places in listed.items():
        lines.append(f"{title}: {len(places)}")
        lines += [f"    {place}" for place in places if with_places]
    total = total_lines(texts)
    lines.append(f"lines with a comment: {100 * comment_lines(texts) / total:.1f} %")
    lines.append(f"lines of the package: {total}")
    lines.append(f"lines of the tests: {total_lines(modules(ROOT / 'tests'))}")
    return lines


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in report("--places" in sys.argv))
