"""Kernel ridge regression, a sum of kernels around known points, evaluated with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.surrogates.exact import Exact, on_grid

ARRAYS = ("stretch", "points", "weights")

ROW_BITS, MAX_ROW, KERNEL_BITS, WEIGHT_BITS = 20, 4.0, 24, 17
MAX_POINTS, MAX_FEATURES = 2048, 64
"""Two rows have 23 bits each and 64 products add 6: 52 of 53. A kernel has 24 bits, a weight 18
with its sign, and 2,048 products add 11: 53 of 53, the sign of a float64 aside."""
CHUNK = 2048
"""Rows whose kernels are held at once."""


def matern(rows: NDArray[np.floating], points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the (n, m) Matern kernel with smoothness 3/2 of stretched (n, c) rows and (m, c).

    k = (1 + sqrt(3) r) exp(-sqrt(3) r) at distance r (Rasmussen and Williams, 2006, eq. 4.17).
    """
    squares = (rows**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2.0 * rows @ points.T
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0))
    return np.asarray((1.0 + distance) * np.exp(-distance), dtype=np.float64)


class ExactKernel:
    """Weights times the kernel between a row and every known point.

    Products are exact: rows get the same bits in any company.
    """

    kind = "exact_kernel"

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a kernel machine's arrays.

        Args:
            arrays: `stretch` (features,) that rows are multiplied by, `points` (m, features)
                stretched, `weights` (m, outputs).

        Raises:
            InvalidArgumentError: an array is missing, the arrays do not fit together, or there are
                too many points or features.
        """
        missing = [name for name in ARRAYS if name not in arrays]
        if missing:
            raise InvalidArgumentError(f"a kernel needs the arrays {ARRAYS}, {missing} are missing")
        self.arrays = {name: arrays[name] for name in ARRAYS}
        self._stretch, points, weights = (arrays[name].astype(np.float64) for name in ARRAYS)
        if weights.ndim != 2 or points.shape != (len(weights), *self._stretch.shape):
            raise InvalidArgumentError("the arrays of a kernel do not fit together")
        if len(weights) > MAX_POINTS or len(self._stretch) > MAX_FEATURES:
            raise InvalidArgumentError(
                f"a kernel must have at most {MAX_POINTS} points and {MAX_FEATURES} features"
            )
        self._points = on_grid(points, ROW_BITS, MAX_ROW)
        largest = np.abs(weights).max(axis=0)
        # Every column has a power of two of its own, up to which its weights are whole numbers.
        self._unit = 2.0 ** np.ceil(np.log2(np.maximum(largest, 1e-30)))
        self._weights = on_grid(weights / self._unit, WEIGHT_BITS, 1.0)

    @property
    def num_features(self) -> int:
        """How many features a row must have."""
        return len(self._stretch)

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features)."""
        flat = rows.reshape(-1, rows.shape[-1])
        starts = range(0, len(flat), CHUNK)
        parts = [self._exactly(flat[start : start + CHUNK]) for start in starts]
        predicted = np.concatenate(parts) * self._unit
        return np.asarray(predicted.reshape(*rows.shape[:-1], -1), dtype=np.float32)

    def _exactly(self, rows: NDArray[np.float32]) -> Exact:
        stretched = on_grid(rows * self._stretch, ROW_BITS, MAX_ROW)
        kernel = on_grid(matern(stretched, self._points), KERNEL_BITS)
        return np.asarray(kernel @ self._weights, dtype=np.float64)
