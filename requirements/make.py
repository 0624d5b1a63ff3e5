"""Makes the lock files beside it again: `make lock`.

`uv` resolves the versions from pyproject.toml and constraints.txt, and names the hash of every
file that the index has of them. Left to do here: packages that only torch's builds for GPUs need
go to a file of their own, and torch gets the hash of its CPU build, which is not on that index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13")
CUDA = ("cuda-", "nvidia-", "triton==")
BUILD = ("pip==", "setuptools==")
# PyTorch publishes CPU builds on an index of its own. This is torch 2.13.0+cpu for Python 3.11 on
# Linux x86_64, the one that continuous integration installs; another version needs another hash.
CPU_BUILDS = {"torch==2.13.0": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"}
INDENT = " \\\n    --hash=sha256:"


def main(uv: str) -> None:
    """Write the lock of each Python version, and what is the same for all of them."""
    found = {version: resolved(uv, version) for version in PYTHONS}
    for version, entries in found.items():
        own = [entry for entry in entries if not entry.startswith(CUDA + BUILD)]
        write(f"py{version}.txt", [with_cpu_build(entry) for entry in own])
    for name, names in (("cuda.txt", CUDA), ("build.txt", BUILD)):
        same = {e for entries in found.values() for e in entries if e.startswith(names)}
        if len({entry.partition("==")[0] for entry in same}) < len(same):
            raise SystemExit(f"{name} is not the same for all versions of Python: lock it apart.")
        write(name, sorted(same))


def resolved(uv: str, version: str) -> list[str]:
    """Return the entries, a requirement and its hashes each, for a version of Python on Linux."""
    root = HERE.parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock.txt"
        words = [
            "--extra=all", "--extra=dev", f"--constraints={root / 'constraints.txt'}",
            f"--python-version={version}", "--python-platform=linux", "--generate-hashes",
            "--no-emit-index-url", "--no-header", "--no-annotate", "--upgrade", "--quiet",
            f"--output-file={out}", str(root / "pyproject.toml"), str(HERE / "build.in"),
        ]  # fmt: skip
        subprocess.run([uv, "pip", "compile", *words], check=True)  # noqa: S603 - the user's own tool
        text = out.read_text(encoding="utf-8")
    return [entry.rstrip() for entry in text.replace("\n    ", "\t").splitlines()]


def with_cpu_build(entry: str) -> str:
    """Add the hash of a CPU build to the entry it belongs to."""
    name = entry.partition(" ")[0]
    if name.startswith("torch==") and name not in CPU_BUILDS:
        raise SystemExit(f"CPU_BUILDS of {Path(__file__).name} must be updated for {name}.")
    return f"{entry}{INDENT}{CPU_BUILDS[name]}" if name in CPU_BUILDS else entry


def write(name: str, entries: list[str]) -> None:
    """Write a lock file."""
    lines = [entry.replace("\t", "\n    ") for entry in entries]
    (HERE / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
