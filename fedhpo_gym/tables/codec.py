"""How metrics are stored: rounded once, to a stated precision, in one or two bytes.

A loss keeps the sign-free upper half of its float32: 8 bits of exponent and 8 of mantissa, a
relative error of at most 2^-9. An accuracy is the exact number of hits. A macro-F1 is rounded to
steps of 1/250.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import unknown_name

Codes = NDArray[np.unsignedinteger]

F1_STEPS = 250

DESCRIPTION = {
    "loss": "upper half of a float32 without its sign: value = (code << 15) read as float32",
    "accuracy": "number of hits: value = code / num_samples",
    "f1": f"value = code / {F1_STEPS}",
}


def dtype(metric: str, num_samples: NDArray[np.integer]) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type that holds the codes of a metric."""
    if metric == "loss":
        return np.dtype(np.uint16)
    if metric == "accuracy":
        return np.min_scalar_type(int(np.max(num_samples)))
    _require_f1(metric)
    return np.dtype(np.uint8)


def encode(metric: str, values: NDArray[np.floating], num_samples: NDArray[np.integer]) -> Codes:
    """Return the codes of metric values.

    Args:
        metric: "loss", "accuracy" or "f1".
        values: (...) finite values; losses are not negative.
        num_samples: broadcastable to `values`; the samples an accuracy is a share of.
    """
    if metric == "loss":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
        top = np.uint64(np.float32(np.inf).view(np.uint32) >> 15) - np.uint64(1)
        rounded = (bits + np.uint64(1 << 14)) >> np.uint64(15)
        return np.asarray(np.minimum(rounded, top), dtype=np.uint16)
    if metric == "accuracy":
        return np.asarray(np.rint(values * num_samples)).astype(dtype(metric, num_samples))
    _require_f1(metric)
    return np.asarray(np.rint(values * F1_STEPS)).astype(np.uint8)


def decode(metric: str, codes: Codes, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return the float32 values of codes; `encode(decode(codes)) == codes`."""
    if metric == "loss":
        return (codes.astype(np.uint32) << np.uint32(15)).view(np.float32)
    if metric == "accuracy":
        return np.asarray(codes / np.maximum(num_samples, 1), dtype=np.float32)
    _require_f1(metric)
    return (codes / np.float32(F1_STEPS)).astype(np.float32)


def _require_f1(metric: str) -> None:
    """Refuse what is neither a loss nor an accuracy nor a macro-F1.

    Raises:
        UnknownNameError: there is no code for it.
    """
    if metric != "f1":
        raise unknown_name("stored metric", metric, DESCRIPTION)
