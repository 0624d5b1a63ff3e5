"""Makes the lock files beside it again: `make lock`.

`uv` resolves the versions from pyproject.toml and constraints.txt, and names the hash of every
file that the index has of them. What is locked stays as it is where it can; what is taken out of a
lock before comes in the newest version. Left to do here: what the demo needs, what only torch's
builds for GPUs need, and torch alone go to files of their own, and torch gets the hashes of its CPU
builds, which are not on that index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EVERYTHING = ("all", "dev", "docs")
DEMO = ("plot",)
CUDA = ("cuda-", "nvidia-", "triton==")
BUILD = ("pip==", "setuptools==")
CPU_BUILDS = {
    "torch==2.13.0": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # Python 3.11, x86-64
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # Python 3.11, ARM
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # Python 3.12, x86-64
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # Python 3.12, ARM
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # Python 3.13, x86-64
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # Python 3.13, ARM
        "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",  # Python 3.14, x86-64
        "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",  # Python 3.14, ARM
    )
}
"""Hashes of the Linux wheels 2.13.0+cpu that PyTorch publishes on an index of its own.

Continuous integration installs the first. The others were not installed here: they are what public
lock files of other projects agree on. Another version needs other hashes.
"""
INDENT = " \\\n    --hash=sha256:"


def main(uv: str) -> None:
    """Write the lock of each Python version, and what is the same for all of them."""
    found = {version: resolved(uv, version, EVERYTHING) for version in PYTHONS}
    own: dict[str, list[str]] = {"cuda.txt": [], "build.txt": [], "torch-cuda.txt": []}
    for version, entries in found.items():
        for entry in entries:
            if entry.startswith(CUDA):
                own["cuda.txt"].append(entry)
            elif entry.startswith(BUILD):
                own["build.txt"].append(entry)
            elif entry.startswith("torch=="):
                own["torch-cuda.txt"].append(entry.replace("==", "===", 1))
        rest = [entry for entry in entries if not entry.startswith(CUDA + BUILD)]
        write(f"py{version}.txt", [with_cpu_builds(entry) for entry in rest])
        names = {name_of(entry) for entry in resolved(uv, version, DEMO)}
        write(f"demo{version}.txt", [entry for entry in rest if name_of(entry) in names])
    for name, entries in own.items():
        same = sorted(set(entries))
        if len({name_of(entry) for entry in same}) < len(same):
            raise SystemExit(f"{name} is not the same for all versions of Python: lock it apart.")
        write(name, same)
    write("torch-cpu.txt", [cpu_only(name, hashes) for name, hashes in CPU_BUILDS.items()])


def resolved(uv: str, version: str, extras: tuple[str, ...]) -> list[str]:
    """Return the entries, a requirement and its hashes each, for a version of Python on Linux."""
    root = HERE.parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock.txt"
        out.write_text("".join(f"{pin}\n" for pin in locked(version)), encoding="utf-8")
        words = [
            *(f"--extra={extra}" for extra in extras),
            f"--constraints={root / 'constraints.txt'}",
            f"--python-version={version}", "--python-platform=linux", "--generate-hashes",
            "--no-emit-index-url", "--no-header", "--no-annotate", "--quiet",
            f"--output-file={out}", str(root / "pyproject.toml"), str(HERE / "build.in"),
        ]  # fmt: skip
        subprocess.run([uv, "pip", "compile", *words], check=True)  # noqa: S603 - the user's own tool
        text = out.read_text(encoding="utf-8")
    return [entry.rstrip() for entry in text.replace("\n    ", "\t").splitlines()]


def locked(version: str) -> list[str]:
    """Return what is locked now, which uv prefers: name and version, without hashes."""
    own = HERE / f"py{version}.txt"
    locks = [own if own.exists() else max(HERE.glob("py*.txt")), *HERE.glob("[bc]u*.txt")]
    lines = "".join(path.read_text(encoding="utf-8") for path in locks).splitlines()
    return [line.partition(" \\")[0] for line in lines if not line.startswith(" ")]


def name_of(entry: str) -> str:
    """Return the name of the package that an entry is about."""
    return entry.partition("==")[0]


def with_cpu_builds(entry: str) -> str:
    """Add the hashes of CPU builds to the entry they belong to."""
    name = entry.partition(" ")[0]
    if name.startswith("torch==") and name not in CPU_BUILDS:
        raise SystemExit(f"CPU_BUILDS of {Path(__file__).name} must be updated for {name}.")
    return entry + "".join(INDENT + known for known in CPU_BUILDS.get(name, ()))


def cpu_only(name: str, hashes: tuple[str, ...]) -> str:
    """Return the entry that no build but those of the CPU meets."""
    return f"{name}+cpu" + "".join(INDENT + known for known in sorted(hashes))


def write(name: str, entries: list[str]) -> None:
    """Write a lock file."""
    lines = [entry.replace("\t", "\n    ") for entry in entries]
    (HERE / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
