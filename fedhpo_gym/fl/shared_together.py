"""Products of clients' matrices taken together, in the form of `shared_matrices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.shared_matrices import subtract_product


class Matrices(Protocol):
    """An (out, in) matrix for each of some clients, those that still train."""

    def times(self, rows: Tensor) -> Tensor:
        """Return (clients, n, out): (clients, n, in) rows times the transposed matrices."""

    def back(self, rows: Tensor) -> Tensor:
        """Return (clients, n, in): (clients, n, out) rows times the matrices."""

    def step(self, left: Tensor, right: Tensor, decay: Tensor) -> None:
        """Replace each matrix M by decay M - left^T right; decay is (clients, 1, 1)."""


class OwnMatrices(Matrices):
    """Matrices that are written for every client and updated in place."""

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        """Compute with (clients, out, in) float32 values in another data type."""
        self._values = values
        self._rounded = values.to(dtype)

    def times(self, rows: Tensor) -> Tensor:
        return rows @ self._rounded.mT

    def back(self, rows: Tensor) -> Tensor:
        return rows @ self._rounded

    def step(self, left: Tensor, right: Tensor, decay: Tensor) -> None:
        self._values.mul_(decay).sub_(left.mT @ right)


class SharedMatrices(Matrices):
    """The matrices of clients of one course in one round; clients that still train come first."""

    def __init__(self, start: Tensor, dtype: torch.dtype, clients: int, rows: int) -> None:
        """Give every client the same (out, in) matrix."""
        self._start, self._rounded = start, start.to(dtype)
        self._left = self._rounded.new_zeros((clients, rows, start.shape[0]))
        self._right = self._rounded.new_zeros((clients, rows, start.shape[1]))
        self._coefficients = start.new_ones((clients, rows))
        self._scale = start.new_ones(clients)
        self._filled = 0
        self._last: tuple[Tensor, Tensor] | None = None
        self._moved: tuple[Tensor, Tensor] | None = None

    def times(self, rows: Tensor) -> Tensor:
        return self._correct(rows @ self._rounded.t(), rows, self._right, self._left)

    def back(self, rows: Tensor) -> Tensor:
        return self._correct(rows @ self._rounded, rows, self._left, self._right)

    def _correct(self, product: Tensor, rows: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        clients = len(rows)
        product *= self._scale[:clients, None, None]
        if not self._filled:
            return product
        used = slice(clients), slice(self._filled)
        weights = rows @ inner[used].mT
        weights *= self._coefficients[used][:, None]
        return product.baddbmm_(weights, outer[used], alpha=-1.0)

    def step(self, left: Tensor, right: Tensor, decay: Tensor) -> None:
        clients, more, _ = left.shape
        self._scale[:clients] *= decay[:, 0, 0]
        self._coefficients[:clients, : self._filled] *= decay[:, 0]
        new = slice(clients), slice(self._filled, self._filled + more)
        self._left[new] = left
        self._right[new] = right
        self._filled += more

    def pull(self, strength: Tensor) -> None:
        """Add strength times the start to the matrices of the first clients."""
        self._scale[: len(strength)] += strength

    def repeat(self, momentum: Tensor) -> None:
        """Add a share of their last move to the matrices of the first clients."""
        now = self._scale[:, None], self._coefficients
        if self._last is None or self._moved is None:
            self._last = torch.ones_like(now[0]), torch.zeros_like(now[1])
            self._moved = torch.zeros_like(now[0]), torch.zeros_like(now[1])
        clients, share = slice(len(momentum)), momentum[:, None]
        # Rows that are not filled yet have not moved: their coefficients are 1 already.
        for value, last, moved in zip(now, self._last, self._moved, strict=True):
            used = clients, slice(1 if value is now[0] else self._filled)
            value[used] += share * moved[used]
            moved[used] = value[used] - last[used]
            last[used] = value[used]

    def add_to(self, total: Tensor, weights: NDArray[np.float32]) -> None:
        """Add the weighted sum of the clients' matrices to a total (out, in), in place."""
        weight = torch.from_numpy(weights).to(total.device)
        total.add_(self._start * (self._scale * weight).sum())
        self._left.mul_((self._coefficients * weight[:, None]).unsqueeze(-1))
        subtract_product(total, self._left.flatten(0, 1), self._right.flatten(0, 1), 1.0)

    def copies(self, clients: Sequence[int]) -> Tensor:
        """Return the (clients, out, in) float32 matrices of some clients, before `add_to`."""
        index = torch.tensor(clients, device=self._start.device)
        left = self._left[index] * self._coefficients[index].unsqueeze(-1)
        product = left.to(self._left.dtype).mT @ self._right[index]
        return self._start * self._scale[index, None, None] - product
