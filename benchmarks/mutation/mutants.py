"""Mutants of modules, by the operators of cosmic-ray, and whether tests notice them.

Tests run in a copy of the checkout, so that nothing here is ever changed; and in processes forked
from one that has imported the heavy packages, so that a mutant takes seconds.
"""

from __future__ import annotations

import ast
import compileall
import difflib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PRELOADED = ("numpy", "torch", "gymnasium", "sklearn.linear_model")
MARKED = "not slow and not data"
POLL_S = 0.02


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        path: the module, from the top of the checkout.
        operator: cosmic-ray's name of the change.
        occurrence: which of the places where the operator applies, from 0.
    """

    path: str
    operator: str
    occurrence: int

    def source(self, original: str) -> str | None:
        """Return the changed module; None where nothing is changed that runs."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        changed = mutate_code(original, get_operator(self.operator)(), self.occurrence)
        if changed is None or _meaning(changed) in (None, _meaning(original)):
            return None
        return str(changed)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, those that change nothing included."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        kind = get_operator(name)
        if not kind.arguments():
            operator = kind()
            count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            yield from (Mutant(path, name, i) for i in range(count))


def changed_lines(original: str, changed: str) -> tuple[str, str]:
    """Return the lines that a mutant takes away and those that it puts there, without margins."""
    lines = list(difflib.unified_diff(original.splitlines(), changed.splitlines(), n=0))[3:]
    before = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    return before, after


class _WithoutAnnotations(ast.NodeTransformer):
    """Takes away what never runs here: annotations are strings, by the import on top."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _meaning(source: str) -> str | None:
    try:
        return ast.dump(_WithoutAnnotations().visit(ast.parse(source)))
    except SyntaxError:
        return None


class Copy:
    """A copy of a checkout in which one module at a time is changed."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        """Copy what git knows of, and get ready for processes that begin at once."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
            cwd=checkout, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # listed, and deleted since
                shutil.copyfile(checkout / name, target)
        compileall.compile_dir(folder / "fedhpo_gym", quiet=2)
        for name in PRELOADED:
            with suppress(ImportError):
                importlib.import_module(name)

    def run(self, tests: Sequence[str], limit_s: float) -> tuple[str, float]:
        """Run tests until the first that fails.

        Returns:
            "passed", "failed" or "hung", and the seconds it took.
        """
        if "fedhpo_gym" in sys.modules:
            raise RuntimeError("the package is imported: forked processes would see no mutant")
        began = time.monotonic()
        if not (process := os.fork()):
            _test(self.folder, tests)
        while time.monotonic() - began < limit_s:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                outcome = "failed" if status else "passed"
                return outcome, time.monotonic() - began
            time.sleep(POLL_S)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return "hung", time.monotonic() - began

    def run_changed(
        self,
        mutant: Mutant,
        changed: str,
        stages: Sequence[Sequence[str]],
        limits_s: Sequence[float],
    ) -> str:
        """Return what the first stage of tests says that does not pass with a mutant in place."""
        path = self.folder / mutant.path
        original = path.read_text(encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        path.write_text(changed, encoding="utf-8")
        try:
            for tests, limit in zip(stages, limits_s, strict=True):
                outcome, _ = self.run(tests, limit)
                if outcome != "passed":
                    return outcome
        finally:
            path.write_text(original, encoding="utf-8")
        return "passed"


def _test(folder: Path, tests: Sequence[str]) -> None:
    """Run pytest in this new process, and end it."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        sys.dont_write_bytecode = True
        import pytest

        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", MARKED, *tests]))
    finally:
        os._exit(status)
