"""Installs the build of torch that is asked for, beside the interpreter that runs this.

`make` hands on its variable TORCH:

- `cpu`: the build without CUDA, some 200 MB, from PyTorch's own index;
- `cuda`: the build of the usual index, which on Linux brings several GB of CUDA;
- `auto`: what is installed stays; else `cuda` where an NVIDIA device is seen, and `cpu` elsewhere.
  Where the CPU build cannot be had, `auto` leaves torch to the lock, which takes the other.

Other systems than Linux have one build, on the usual index.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CHOICES = ("auto", "cpu", "cuda")


def main(choice: str) -> None:
    """Install a build of torch, or leave what is there."""
    if choice not in CHOICES:
        raise SystemExit(f"TORCH must be one of {', '.join(CHOICES)}, got {choice!r}.")
    if not sys.platform.startswith("linux"):
        return
    build = choice if choice != "auto" else "cuda" if sees_nvidia() else "cpu"
    locks = {name: HERE / f"torch-{name}.txt" for name in ("cpu", "cuda")}
    wanted = {name: version_in(lock) for name, lock in locks.items()}
    if installed() in (wanted.values() if choice == "auto" else [wanted[build]]):
        return
    if install(build, locks[build]):
        sys.stdout.write(f"torch {wanted[build]}: chosen by TORCH={choice}.\n")
    elif choice != "auto":
        raise SystemExit(f"torch {wanted[build]} cannot be had here; the lines above say why.")
    else:
        sys.stdout.write(f"torch {wanted[build]} cannot be had here: taking what the lock has.\n")


def sees_nvidia() -> bool:
    """Tell whether an NVIDIA device is there."""
    if any(Path("/proc/driver/nvidia/gpus").glob("*")) or any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True).returncode == 0  # noqa: S603 - the driver's own tool


def version_in(lock: Path) -> str:
    """Return the version of torch that a lock of torch alone names."""
    return lock.read_text(encoding="utf-8").split()[0].rpartition("=")[2]


def installed() -> str | None:
    """Return the version of torch that is installed, or None."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def install(build: str, lock: Path) -> bool:
    """Install torch alone, by its hashes; tell whether that went well."""
    index = [f"--extra-index-url={CPU_INDEX}", "--retries=1"] if build == "cpu" else []
    words = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    asked = [sys.executable, "-m", "pip", *words, *index, f"--requirement={lock}"]
    return subprocess.run(asked).returncode == 0  # noqa: S603 - pip of this interpreter


if __name__ == "__main__":
    main(*sys.argv[1:])
