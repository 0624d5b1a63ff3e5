"""Matrices of clients that start alike: one shared product, and a thin correction for each client.

All clients of a round start from the same matrix W. A step of stochastic gradient descent (SGD)
with weight decay and a pull towards W keeps a client's matrix of the form

    scale W - sum_j coefficient_j left_j^T right_j

with a row of `left` and `right` for every sample that was trained on. So the rows of all clients
are multiplied by W at once, and no client's matrix is ever written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.algorithms.base import Parameters
from fedhpo_gym.fl.participants import ClientBatch

TILE = 32
"""Rows of shared products and of corrections are filled up to a multiple of it: every new shape of
a product costs its library a millisecond."""
SUM_TILE = 256
"""Likewise for the product at the end of the round."""


def worth_sharing(rank: NDArray[np.int64], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Return where corrections have fewer numbers than the (out, in) matrices they replace."""
    return np.asarray(rank * sum(shape) <= shape[0] * shape[1])


class OwnMatrix:
    """The matrix of one client, updated in place."""

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        """Compute with (out, in) float32 values in another data type."""
        self._values = values
        self._rounded = values.to(dtype)

    def times(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        return rows @ self._rounded.t()

    def back(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        return rows @ self._rounded

    def step(
        self,
        row_factor: Tensor,
        column_factor: Tensor,
        sizes: Sequence[int],
        decay: Sequence[float],
    ) -> None:
        subtract_product(self._values, row_factor, column_factor, decay[0])


class SharedMatrix:
    """The (out, in) matrices of clients of one course in one round, those that still train first.

    Rows of clients are concatenated, `sizes` rows of each.
    """

    def __init__(
        self, start: Tensor, dtype: torch.dtype, ranks: Sequence[int], buffers: Workspace, name: str
    ) -> None:
        self._start, self._rounded = start, start.to(dtype)
        self._bounds = list(itertools.accumulate((_up(r, TILE) for r in ranks), initial=0))
        self._filled = [0] * len(ranks)
        total = _up(self._bounds[-1], SUM_TILE)
        self._left = buffers.take(f"left {name}", (total, start.shape[0]), self._rounded)
        self._right = buffers.take(f"right {name}", (total, start.shape[1]), self._rounded)
        self._coefficients = torch.ones(total, device=start.device)
        self._scale = np.ones(len(ranks), dtype=np.float32)
        self._last: tuple[NDArray[np.float32], Tensor] | None = None
        self._moved: tuple[NDArray[np.float32], Tensor] | None = None

    def times(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return (n, out): each client's (n, in) rows times its transposed matrix."""
        return self._correct(
            _padded(rows) @ self._rounded.t(), rows, self._right, self._left, sizes
        )

    def back(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return (n, in): each client's (n, out) rows times its matrix."""
        return self._correct(_padded(rows) @ self._rounded, rows, self._left, self._right, sizes)

    def _correct(
        self, product: Tensor, rows: Tensor, inner: Tensor, outer: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        ends = list(itertools.accumulate(sizes, initial=0))
        for client, (start, end) in enumerate(itertools.pairwise(ends)):
            scale, filled = float(self._scale[client]), self._used(client)
            if scale != 1.0:
                product[start:end] *= scale
            if filled.stop > filled.start:
                weights = rows[start:end] @ inner[filled].t()
                weights *= self._coefficients[filled]
                product[start:end].addmm_(weights, outer[filled], alpha=-1.0)
        return product[: len(rows)]

    def step(
        self,
        row_factor: Tensor,
        column_factor: Tensor,
        sizes: Sequence[int],
        decay: Sequence[float],
    ) -> None:
        """Replace each client's matrix M by decay M - left^T right; (n, out) and (n, in)."""
        ends = list(itertools.accumulate(sizes, initial=0))
        with np.errstate(over="ignore", invalid="ignore"):
            self._scale[: len(sizes)] *= np.asarray(decay, dtype=np.float32)
        for client, (start, end) in enumerate(itertools.pairwise(ends)):
            used = self._used(client)
            if decay[client] != 1.0:
                self._coefficients[used] *= decay[client]
            first = self._bounds[client] + self._filled[client]
            self._filled[client] += end - start
            grown = self._used(client)
            for mine, rows in ((self._left, row_factor), (self._right, column_factor)):
                mine[used.stop : grown.stop] = 0.0
                mine[first : first + end - start] = rows[start:end]
            # The first rows of the last tile were there before: their coefficients are their own.
            self._coefficients[first : grown.stop] = 1.0

    def pull(self, strength: Tensor) -> None:
        """Add strength times the start to the matrices of the first clients."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._scale[: len(strength)] += strength.cpu().numpy()

    def repeat(self, momentum: Tensor) -> None:
        """Add a share of their last move to the matrices of the first clients."""
        if self._last is None or self._moved is None:
            zeros = torch.zeros_like(self._coefficients)
            self._last = np.ones_like(self._scale), zeros
            self._moved = np.zeros_like(self._scale), zeros.clone()
        for client, share in enumerate(momentum.cpu().numpy()):
            first = self._bounds[client]
            rows = slice(first, first + self._filled[client])
            with np.errstate(over="ignore", invalid="ignore"):
                self._scale[client] += share * self._moved[0][client]
                self._moved[0][client] = self._scale[client] - self._last[0][client]
            self._last[0][client] = self._scale[client]
            now, last, last_moves = (
                self._coefficients[rows],
                self._last[1][rows],
                self._moved[1][rows],
            )
            now.add_(last_moves, alpha=float(share))
            last_moves.copy_(now - last)
            last.copy_(now)

    def add_to(self, total: Tensor, weights: NDArray[np.float32]) -> None:
        """Add the weighted sum of the clients' matrices to a total (out, in), in place."""
        with np.errstate(over="ignore", invalid="ignore"):
            total.add_(self._start, alpha=float((self._scale * weights).sum()))
        for client, weight in enumerate(weights.tolist()):
            used = self._used(client)
            self._coefficients[used] *= weight
            for mine in (self._left, self._right):
                mine[used.stop : self._bounds[client + 1]] = 0.0
        for mine in (self._left, self._right):
            mine[self._bounds[-1] :] = 0.0
        row_factor = self._left.mul_(self._coefficients[:, None])
        subtract_product(total, row_factor, self._right, 1.0)

    def copies(self, clients: Sequence[int]) -> Tensor:
        """Return the (clients, out, in) float32 matrices of some clients, before `add_to`."""
        out = torch.empty((len(clients), *self._start.shape), device=self._start.device)
        for row, client in enumerate(clients):
            used = self._used(client)
            out[row] = self._start * float(self._scale[client])
            row_factor = (self._left[used] * self._coefficients[used, None]).to(self._left.dtype)
            subtract_product(out[row], row_factor, self._right[used], 1.0)
        return out

    def _used(self, client: int) -> slice:
        """Rows of a client that are filled, up to the end of a tile."""
        first = self._bounds[client]
        return slice(first, first + _up(self._filled[client], TILE))


Matrix = OwnMatrix | SharedMatrix


def subtract_product(
    values: Tensor, row_factor: Tensor, column_factor: Tensor, decay: float
) -> None:
    """Replace (out, in) float32 values by decay values - left^T right, in place."""
    if row_factor.dtype == values.dtype:
        values.addmm_(row_factor.t(), column_factor, beta=decay, alpha=-1.0)
        return
    if decay != 1.0:
        values.mul_(decay)
    # Twice as fast as leaving the transposition to the product.
    values.sub_(row_factor.t().contiguous() @ column_factor)


def _padded(rows: Tensor) -> Tensor:
    missing = -len(rows) % TILE
    return torch.cat([rows, rows.new_zeros((missing, rows.shape[1]))]) if missing else rows


def _up(count: int, tile: int) -> int:
    return -(-count // tile) * tile


class Workspace:
    """Tensors of the largest size so far, by name.

    The allocator returns large tensors to the system as soon as they are free, and the first access
    to new pages costs as much as several passes over used ones.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a contiguous tensor of any content, valid until its name is taken again."""
        size = math.prod(shape)
        buffer = self._kept.get(name)
        if buffer is None or len(buffer) < size or buffer.dtype != like.dtype:
            buffer = torch.empty(size, dtype=like.dtype, device=like.device)
            self._kept[name] = buffer
        return buffer[:size].view(*shape)


ROWS_TOGETHER = 256
"""Rows of minibatches that clients of one course train together, at most: more would gain little,
and feature maps need memory."""
MAX_KEPT = 2**13
"""Rows that corrections of clients that train together hold, at most."""
MORE = 8
"""How many times more both are where a model takes the step of all items together."""


def sharing_courses(
    rows: NDArray[np.int64], names: frozenset[str], parameters: Parameters
) -> NDArray[np.bool_]:
    """Return which of (courses,) share parameters, by what their own clients cost."""
    is_sharing = np.full(len(rows), bool(names))
    for name in names:
        is_sharing &= worth_sharing(rows, parameters[name].shape[2:])
    return is_sharing


def split_cohorts(
    items: ClientBatch, rows: NDArray[np.int64], together: bool = False
) -> Iterator[ClientBatch]:
    """Yield the items by course, and of each as many clients as train together."""
    more = MORE if together else 1
    for course in np.unique(items.course).tolist():
        rows_of_course = np.flatnonzero(items.course == course)
        width = int(items.width[rows_of_course[0]])
        count = min(ROWS_TOGETHER * more // width, MAX_KEPT * more // int(rows[course]))
        for start in range(0, len(rows_of_course), max(count, 1)):
            yield items.take(rows_of_course[start : start + max(count, 1)])


class OwnMatrices:
    """Matrices that are written for every client and updated in place."""

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        """Compute with (clients, out, in) float32 values in another data type."""
        self._values = values
        self._rounded = values.to(dtype)

    def times(self, rows: Tensor) -> Tensor:
        return rows @ self._rounded.mT

    def back(self, rows: Tensor) -> Tensor:
        return rows @ self._rounded

    def step(self, row_factor: Tensor, column_factor: Tensor, decay: Tensor) -> None:
        self._values.mul_(decay).sub_(row_factor.mT @ column_factor)


class SharedMatrices:
    """The matrices of clients of one course in one round; clients that still train come first."""

    def __init__(self, start: Tensor, dtype: torch.dtype, clients: int, rows: int) -> None:
        self._start, self._rounded = start, start.to(dtype)
        self._left = self._rounded.new_zeros((clients, rows, start.shape[0]))
        self._right = self._rounded.new_zeros((clients, rows, start.shape[1]))
        self._coefficients = start.new_ones((clients, rows))
        self._scale = start.new_ones(clients)
        self._filled = 0
        self._last: tuple[Tensor, Tensor] | None = None
        self._moved: tuple[Tensor, Tensor] | None = None

    def times(self, rows: Tensor) -> Tensor:
        """Return (clients, n, out): (clients, n, in) rows times the transposed matrices."""
        return self._correct(rows @ self._rounded.t(), rows, self._right, self._left)

    def back(self, rows: Tensor) -> Tensor:
        """Return (clients, n, in): (clients, n, out) rows times the matrices."""
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

    def step(self, row_factor: Tensor, column_factor: Tensor, decay: Tensor) -> None:
        """Replace each matrix M by decay M - left^T right; decay is (clients, 1, 1)."""
        clients, more, _ = row_factor.shape
        self._scale[:clients] *= decay[:, 0, 0]
        self._coefficients[:clients, : self._filled] *= decay[:, 0]
        new = slice(clients), slice(self._filled, self._filled + more)
        self._left[new] = row_factor
        self._right[new] = column_factor
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
        for value, last, last_move in zip(now, self._last, self._moved, strict=True):
            used = clients, slice(1 if value is now[0] else self._filled)
            value[used] += share * last_move[used]
            last_move[used] = value[used] - last[used]
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
        row_factor = self._left[index] * self._coefficients[index].unsqueeze(-1)
        product = row_factor.to(self._left.dtype).mT @ self._right[index]
        return self._start * self._scale[index, None, None] - product


Matrices = OwnMatrices | SharedMatrices
