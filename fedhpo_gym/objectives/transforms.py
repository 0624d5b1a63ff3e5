"""Transforms by name: bounded errors of values that may lie beyond their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray


def squash(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``log(1 + d) / (1 + log(1 + d))`` for (B,) distances from the best value, 0 or more.

    It rises strictly from 0 to 1, which only infinity reaches. The logarithm keeps apart what
    differs by a factor: two losses in nats up to the largest float32 that differ by one part in
    2^9, the precision of stored losses, are two float32 rewards.
    """
    # One memory layout, one way to compute: a batch has the bits of each value alone.
    logs = np.log1p(np.ascontiguousarray(distance))
    infinite = np.isinf(logs)
    logs[infinite] = 1.0
    return np.where(infinite, 1.0, logs / (1.0 + logs))


TRANSFORMS: Final[Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]] | None]] = (
    MappingProxyType({"clip": None, "squash": squash})
)
"""Transforms by name: None stops at the bounds."""
