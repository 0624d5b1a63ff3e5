"""Memory that is allocated once and used again by every round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Buffers:
    """Tensors of the largest size that was ever asked for, by name.

    The allocator gives large tensors back to the system as soon as they are free, and the first
    touch of fresh pages costs as much as several passes over warm ones.
    """

    def __init__(self) -> None:
        """Start without any memory."""
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a contiguous tensor of any content, valid until its name is taken again.

        Args:
            name: whose memory to use.
            shape: of the tensor.
            like: a tensor of its data type and device.
        """
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or len(kept) < size or kept.dtype != like.dtype:
            kept = torch.empty(size, dtype=like.dtype, device=like.device)
            self._kept[name] = kept
        return kept[:size].view(*shape)
