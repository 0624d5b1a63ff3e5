"""What courses are computed with: types of numbers and where they are refused, and devices."""

from __future__ import annotations

import os

import torch

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.fl.models.description import Model

EMULATION = "FEDHPO_GYM_EMULATE_BFLOAT16"
"""Environment variable: 1 allows bfloat16 where the processor lacks instructions for it."""


def require_precision(precision: str, model: type[Model], device: str = "cpu") -> None:
    """Check that a model can be trained in a precision here, and not slower than in float32.

    Raises:
        InvalidArgumentError: it cannot.
    """
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
