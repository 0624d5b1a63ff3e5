"""A small fully connected network in a few arrays, evaluated with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError


class Network:
    """Linear layers with rectifiers between them."""

    kind = "network"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a network's arrays.

        Args:
            arrays: `weight_<i>` (inputs, outputs) and `bias_<i>` (outputs,) of layer i.

        Raises:
            InvalidArgumentError: an array is missing, or the layers do not fit together.
        """
        count = sum(name.startswith("weight_") for name in arrays)
        names = [f"{part}_{layer}" for layer in range(count) for part in ("weight", "bias")]
        if not count or any(name not in arrays for name in names):
            raise InvalidArgumentError(
                f"a network needs weight_0, bias_0, weight_1, ..., got {sorted(arrays)}"
            )
        self.arrays = {name: arrays[name] for name in names}
        self._weights = [arrays[f"weight_{i}"].astype(np.float32) for i in range(count)]
        self._biases = [arrays[f"bias_{i}"].astype(np.float32) for i in range(count)]
        if any(a.shape[1] != b.shape[0] for a, b in pairwise(self._weights)) or any(
            w.shape[1:] != b.shape for w, b in zip(self._weights, self._biases, strict=True)
        ):
            raise InvalidArgumentError("the layers of a network do not fit together")

    @property
    def num_features(self) -> int:
        """How many features a row must have."""
        return len(self._weights[0])

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features).

        Leading axes change no bit: numpy multiplies one (n, features) matrix after the other.
        """
        hidden = rows
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        return np.asarray(hidden @ self._weights[-1] + self._biases[-1], dtype=np.float32)
