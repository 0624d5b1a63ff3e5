"""Matrix factorisation of ratings by users whose own factors never leave them, nor are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

RANK = 10
MIDDLE = 3.0
"""Stars that are predicted when nothing is known."""
RIDGE = 1.0
"""Weight of ||u||^2 beside the squared errors of a user's training ratings."""
SPREAD = 0.3
"""Standard deviation of the initial factors."""
RATINGS_AT_ONCE = 2**17


class MatrixFactorisation(TorchModel):
    """Stars of item i by user u: 3 + b_i + <p_u, (v_i, 1)>, trained on squared errors.

    The server holds the items' factors v and biases b. A user's p_u is the ridge regression on the
    training ratings of the user, solved whenever it is needed (federated reconstruction, Singhal et
    al., 2021): users are stateless, and memory does not grow with their number. Where p_u is at its
    minimum, the gradient of the regularised loss by v and b is that with p_u fixed.

    Parameters: `factors` (1, items, rated items, rank), `bias` (1, items, rated items). An input is
    (item, user).

    Metrics: the loss is the squared error, in stars^2; the predicted class is the nearest of the
    stars. `logits` are minus the squared distances to them.
    """

    def __init__(self, federation: Federation, device: torch.device) -> None:
        self.device = device
        self._stars = torch.arange(1.0, federation.num_classes + 1, device=device)
        ids = federation.features[np.arange(len(federation.labels))][:, 0]
        self._num_items = int(ids.max()) + 1
        self._owner = np.zeros(len(ids), dtype=np.int64)
        for user, splits in enumerate(federation.clients):
            for rows in splits:
                self._owner[rows] = user
        train = np.concatenate([splits[0] for splits in federation.clients])
        first = np.concatenate([[0], np.cumsum(federation.num_samples[:, 0])])
        self._first = torch.from_numpy(first).to(device)
        self._rated = torch.from_numpy(ids[train].astype(np.int64)).to(device)
        ratings = federation.labels[train].astype(np.float32) + 1.0 - MIDDLE
        self._given = torch.from_numpy(ratings).to(device)
        self.num_parameters = self._num_items * (RANK + 1)

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> MatrixFactorisation:
        del shape
        return cls(federation, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        factors = rng.normal(0.0, SPREAD, (1, self._num_items, RANK)).astype(np.float32)
        return {"factors": factors, "bias": np.zeros((1, self._num_items), dtype=np.float32)}

    def inputs(self, features: Features) -> Tensor:
        """Return (n, 2) int64: the item and the user of every rating."""
        ids = features[np.arange(len(features))][:, 0]
        return torch.from_numpy(np.stack([ids.astype(np.int64), self._owner], 1)).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        for item, size in enumerate(batch.sizes.tolist()):
            if not size:
                continue
            factors, bias = (parameters[k][0, item] for k in ("factors", "bias"))
            ids, user = batch.x[item, :size, 0], batch.x[item, :1, 1]
            user_factors = self.solve(factors, bias, user)[0]
            stars = batch.targets[:, item, :size].t() @ self._stars
            error = MIDDLE + bias[ids] + _widened(factors[ids]) @ user_factors - stars
            step = 2.0 * batch.rates[item, :size] * error
            decay = batch.decay[item]
            factors.mul_(decay).index_add_(0, ids, step[:, None] * user_factors[:RANK], alpha=-1.0)
            bias.mul_(decay).index_add_(0, ids, step, alpha=-1.0)

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        users, where = torch.unique(x[:, 1], return_inverse=True)
        out = torch.empty((len(self._stars), parameters["bias"].shape[1], len(x)))
        out = out.to(self.device)
        for item in range(out.shape[1]):
            factors, bias = (parameters[k][0, item] for k in ("factors", "bias"))
            user_factors = self.solve(factors, bias, users)[where]
            predicted = MIDDLE + bias[x[:, 0]] + (_widened(factors[x[:, 0]]) * user_factors).sum(1)
            out[:, item] = -((predicted - self._stars[:, None]) ** 2)
        return out

    def losses(self, logits: Tensor, top: Tensor, true_logits: Tensor) -> Tensor:
        return -true_logits

    def solve(self, factors: Tensor, bias: Tensor, users: Tensor) -> Tensor:
        """Return the (users, rank + 1) factors and bias of users, given those of the items."""
        counts = self._first[users + 1] - self._first[users]
        portion_index = torch.cumsum(counts, 0) // RATINGS_AT_ONCE
        sizes = torch.unique_consecutive(portion_index, return_counts=True)[1].tolist()
        return torch.cat([self._solve(factors, bias, some) for some in torch.split(users, sizes)])

    def _solve(self, factors: Tensor, bias: Tensor, users: Tensor) -> Tensor:
        begin, counts = self._first[users], self._first[users + 1] - self._first[users]
        offsets = torch.cumsum(counts, 0) - counts
        steps = torch.arange(int(counts.sum()), device=self.device)
        rows = steps + torch.repeat_interleave(begin - offsets, counts)
        ids = self._rated[rows]
        wide = _widened(factors[ids])
        target = self._given[rows] - bias[ids]
        width = RANK + 1
        squares = (wide[:, :, None] * wide[:, None, :]).view(-1, width * width)
        sums = torch.cat([squares, wide * target[:, None]], 1)
        if not len(sums):
            return factors.new_zeros((len(users), width))
        bags = functional.embedding_bag(steps, sums, offsets, mode="sum")
        normal = bags[:, : width * width].view(-1, width, width)
        normal = normal + RIDGE * torch.eye(width, device=self.device)
        solution: Tensor = torch.linalg.solve_ex(normal, bags[:, width * width :])[0]
        return solution


def _widened(factors: Tensor) -> Tensor:
    """Append a factor of one, which the user's bias multiplies."""
    return functional.pad(factors, (0, 1), value=1.0)
