"""What this processor computes with, and the setting that fixes how torch multiplies matrices.

Unless told otherwise, oneMKL chooses by shape, by processor and by where numbers lie in memory
among kernels that round differently. Its setting `MKL_CBWR` fixes the choice; it is read once, when
the first matrices are multiplied, so importing this package sets it, and worker processes inherit
it. docs/reliability.md says what is promised where.
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
"""Among the kernels for AVX2, only the strict ones round a row alike whatever stands beside it."""


def fix_dispatch() -> None:
    """Set `MKL_CBWR` to what this processor has, unless the user has set it."""
    chosen = kernel_branch()
    if chosen is not None and not os.environ.get(SETTING):
        os.environ[SETTING] = chosen


def kernel_branch() -> str | None:
    """Return which kernels of oneMKL give equal bits here; None where there is no oneMKL."""
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
    """Return the widest vectors of this processor: `AVX512`, `AVX2`, `SSE`, `SVE`, `NEON`, ..."""
    core = getattr(np, "_core", None) or np.core
    found = getattr(core._multiarray_umath, "__cpu_features__", {})
    if found.get("AVX512_SKX") or found.get("X86_V4"):
        return "AVX512 with AMX" if "amx_tile" in _cpu_info("flags").split() else "AVX512"
    if found.get("AVX2") or found.get("X86_V3"):
        return "AVX2"
    for name in ("SSE42", "SVE", "NEON", "VSX", "VX"):
        if found.get(name):
            return name
    return "unknown"


@cache
def _cpu_info(entry: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith(entry)), "")


def rounding_platform() -> dict[str, str]:
    """Return what decides how numbers are rounded here: equal ones train equal numbers."""
    chosen = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    found = {
        "machine": platform.machine(),
        "processor": _cpu_info("model name") or platform.processor(),
        "vectors": vector_level(),
        "settings": " ".join(chosen),
        "numpy": np.__version__,
        "torch": version_of("torch"),
    }
    return {name: value for name, value in found.items() if value}


@cache
def version_of(name: str) -> str:
    """Return the version of a package; empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
