"""Whether torch's products are those that `fedhpo_gym.core.processor` chose."""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from pathlib import Path

import torch

from fedhpo_gym.core.processor import SETTING, chosen_branch

_OFF = 1
"""What oneMKL answers where no branch of its kernels is chosen."""
_ALL = -1
_ASKED = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
"""Names of the function that answers: inside torch, and in a library of its own."""


def fixed() -> bool | None:
    """Return whether the kernels of oneMKL are fixed in this process; None where it has none."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    branch = _branch()
    return None if branch is None else branch != _OFF


def _branch() -> int | None:
    """Ask oneMKL itself: what it read from the environment, it read at the first product."""
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("*torch_cpu.*"):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _ASKED:
            if (ask := getattr(library, name, None)) is not None:
                ask.restype = ctypes.c_int
                return int(ask(ctypes.c_int(_ALL)))
    return None


@cache
def warn_unless_fixed() -> None:
    """Warn, once in a process, where matrices were multiplied before this package was imported."""
    ours = os.environ.get(SETTING)
    if ours is not None and ours == chosen_branch() and fixed() is False:
        warnings.warn(
            f"torch multiplied matrices before fedhpo_gym was imported, so {SETTING}={ours} came "
            "too late, and on some processors the numbers of a course depend on the courses "
            "beside it. Import fedhpo_gym first, or set that environment variable before Python "
            "starts; `fedhpo-gym check --engine` says what holds here.",
            RuntimeWarning,
            stacklevel=3,
        )
