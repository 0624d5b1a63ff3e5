"""The vector instructions of this processor, and the setting that fixes the rounding of oneMKL.

By default, oneMKL chooses among kernels that round differently, by shape, processor and memory
alignment. Its setting `MKL_CBWR` fixes the choice. It is read once, at the first product of
matrices, so importing this package sets it, and worker processes inherit it. docs/reliability.md
lists the guarantees.
"""

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

SETTING = "MKL_CBWR"
"""Environment variable that fixes the kernels of oneMKL."""
SETTINGS = (
    SETTING,
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "NPY_DISABLE_CPU_FEATURES",
)
"""Environment variables that decide how numbers are rounded here."""
STRICT = "AVX2,STRICT"
"""Of the kernels for AVX2, only the strict ones round a row independently of the other rows."""


def fix_dispatch() -> None:
    """Set `MKL_CBWR` to the kernels for this processor, unless the user has set it."""
    branch = kernel_branch()
    if branch is not None and not os.environ.get(SETTING):
        os.environ[SETTING] = branch


def kernel_branch() -> str | None:
    """Return the kernels of oneMKL that give equal bits here; None on processors without oneMKL."""
    level = vector_level()
    allowed = os.environ.get("MKL_ENABLE_INSTRUCTIONS", level)
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    if level.startswith("AVX512") and allowed.startswith("AVX512"):
        return "AVX512"
    if level.startswith("AVX") and allowed.startswith(("AVX2", "AVX512")):
        return STRICT
    return "COMPATIBLE"


@cache
def vector_level() -> str:
    """Return the widest vector instructions here: `AVX512`, `AVX2`, `SSE`, `SVE`, `NEON`, ..."""
    core = getattr(np, "_core", None) or np.core
    features = getattr(core._multiarray_umath, "__cpu_features__", {})
    if features.get("AVX512_SKX") or features.get("X86_V4"):
        return "AVX512 with AMX" if "amx_tile" in _read_cpu_info("flags").split() else "AVX512"
    if features.get("AVX2") or features.get("X86_V3"):
        return "AVX2"
    for name in ("SSE42", "SVE", "NEON", "VSX", "VX"):
        if features.get(name):
            return name
    return "unknown"


@cache
def _read_cpu_info(entry: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith(entry)), "")


def rounding_platform() -> dict[str, str]:
    """Return all that determines rounding here: equal platforms train equal numbers."""
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    facts = {
        "machine": platform.machine(),
        "processor": _read_cpu_info("model name") or platform.processor(),
        "vectors": vector_level(),
        "settings": " ".join(settings),
        "numpy": np.__version__,
        "torch": version_of("torch"),
    }
    return {name: value for name, value in facts.items() if value}


@cache
def version_of(name: str) -> str:
    """Return the version of a package; an empty string if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
