"""The lock files: everything that is declared, by hashes, and nothing of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
OF_OLD_PYTHONS = {"importlib-metadata"}
"""What dask needs before Python 3.12 only."""
ENTRY = re.compile(r"([a-z0-9._-]+)==(\S+?)(?: ; .*?)?((?: --hash=sha256:[0-9a-f]{64})+)")


def entries(path: Path) -> dict[str, str]:
    """Return version by name; every entry has hashes, and there is nothing but entries."""
    lines = path.read_text(encoding="utf-8").replace(" \\\n   ", "").splitlines()
    found = [ENTRY.fullmatch(line) for line in lines]
    assert None not in found, [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: match[2] for match in found if match}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_versions_and_hashes_only(path: Path) -> None:
    assert entries(path)


def test_every_supported_python_has_a_lock() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)", text)
    assert {f"py{version}.txt" for version in versions} < {path.name for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_the_locks_have_the_versions_that_are_pinned(path: Path) -> None:
    found, wanted = entries(path), pinned()
    if path.name.startswith("py"):
        assert wanted.keys() - found.keys() <= OF_OLD_PYTHONS
        assert {
            name: found[name] for name in wanted.keys() & found.keys()
        }.items() <= wanted.items()
    assert not {"pip", "setuptools"} & found.keys() or path.name == "build.txt"


def test_the_makefile_installs_nothing_without_a_hash_but_this_package() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if line.startswith("\t$(PIP)")]
    assert len(installs) == 3
    assert all("--require-hashes" in line for line in installs[:2])
    assert installs[2].split() == ["$(PIP)", "--no-deps", "--no-build-isolation", "-e", "."]
