"""What torch computes with: types of numbers and where they are refused, devices, and kernels."""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from pathlib import Path

import torch

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.processor import SETTING, chosen_branch
from fedhpo_gym.fl.models.model import Model

EMULATION = "FEDHPO_GYM_EMULATE_BFLOAT16"
"""Environment variable: 1 allows bfloat16 where the processor lacks instructions for it."""


def require_precision(precision: str, model: type[Model], device: str = "cpu") -> None:
    """Check that a model can be trained in a precision here, and not slower than in float32."""
    model.refuse_precision(precision)
    if precision == "float32" or torch.device(device).type != "cpu" or has_bfloat16():
        return
    if os.environ.get(EMULATION) != "1":
        raise InvalidArgumentError(
            f"`precision` is {precision!r}, and this processor has no instructions for it: it "
            "would be slower than 'float32' here. Use a processor with avx512_bf16 or amx_bf16, "
            f"or set the environment variable {EMULATION} to 1."
        )


def has_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def device_name(device: str) -> str:
    """Return the name of a torch device: that of its graphics processor, if it is one."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


_OFF = 1
"""What oneMKL answers where no branch of its kernels is chosen."""
_ALL = -1
_ASKED = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
"""Names of the function that answers: inside torch, and in a library of its own."""


def fixed() -> bool | None:
    """Return whether the kernels of oneMKL are fixed in this process; None where it has none.

    oneMKL itself is asked: what it read from the environment, it read at the first product.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("*torch_cpu.*"):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _ASKED:
            if (ask := getattr(library, name, None)) is not None:
                ask.restype = ctypes.c_int
                return int(ask(ctypes.c_int(_ALL))) != _OFF
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
