"""What is measured of a group: metrics of its models, and what clients report of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedhpo_gym.fl.evaluation import Evaluator
from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.lockstep import Lockstep, Observer
from fedhpo_gym.fl.models import Inputs, Model, Parameters
from fedhpo_gym.fl.models.base import sum_classes
from fedhpo_gym.schema import METRICS, SPLITS

MAX_NORM = 1e18
"""Norms of updates are reported up to this; those of a diverging client have no bound."""


@dataclass(frozen=True, eq=False)
class Feedback:
    """What the clients reported; entries of clients that did not train are 0.

    Attributes:
        sampled: (courses, rounds, clients) which clients trained.
        before: (courses, rounds, clients, splits, metrics) of the model a client received.
        after: likewise, of the model it made of it.
        update_norm: (courses, rounds, clients) Euclidean norm of a client's update of what is
            trained.
        alignment: (courses, rounds, clients) cosine of a client's update and the weighted mean of
            all updates of the round (of those trained at once, if not all fit into memory), in
            [-1, 1].
    """

    sampled: NDArray[np.bool_]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    update_norm: NDArray[np.float32]
    alignment: NDArray[np.float32]


def empty_feedback(size: tuple[int, int, int]) -> Feedback:
    """Return the feedback of (courses, rounds, clients) in which nobody has reported."""
    metrics = (*size, len(SPLITS), len(METRICS))
    return Feedback(
        np.zeros(size, dtype=np.bool_),
        np.zeros(metrics, dtype=np.float32),
        np.zeros(metrics, dtype=np.float32),
        np.zeros(size, dtype=np.float32),
        np.zeros(size, dtype=np.float32),
    )


class Evaluation:
    """Evaluates the courses of groups that share a federation and a model."""

    def __init__(
        self, federation: Federation, model: Model, inputs: Inputs, device: torch.device
    ) -> None:
        self._federation = federation
        self._arguments = (federation, model, inputs, device)
        self._buffers = model.buffers
        self._all: Evaluator | None = None
        self._single: dict[int, Evaluator] = {}

    def __call__(self, lockstep: Lockstep) -> NDArray[np.float32]:
        """Return (blocks, slots, clients, splits, metrics) of the model each client would use."""
        if not lockstep.personal:
            if self._all is None:
                self._all = Evaluator(*self._arguments)
            return self._all(lockstep.parameters)
        clients = range(self._federation.num_clients)
        metrics = [self._of(c)(lockstep.client_parameters(c)) for c in clients]
        return np.concatenate(metrics, axis=2)

    def observer(
        self, lockstep: Lockstep, feedback: Feedback, index: int, metrics: bool = True
    ) -> Observer:
        """Return what fills in one round of a group's feedback, with or without the metrics."""
        fixed = self._buffers

        def observe(items: Items, start: Parameters, local: Parameters) -> None:
            trained = {name: v - start[name] for name, v in local.items() if name not in fixed}
            norm, alignment = _compare(items, trained)
            blocks = [block.courses for block in lockstep.group.blocks]
            for row, (block, client) in enumerate(
                zip(items.block.tolist(), items.client.tolist(), strict=True)
            ):
                at, used = blocks[block], slice(len(blocks[block]))
                feedback.sampled[at, index, client] = True
                feedback.update_norm[at, index, client] = norm[row, used]
                feedback.alignment[at, index, client] = alignment[row, used]
            for client in np.unique(items.client).tolist() if metrics else ():
                chosen = np.flatnonzero(items.client == client)
                where = torch.from_numpy(chosen)
                before, after = (
                    self._of(client)({k: v[:, where] for k, v in values.items()})[:, :, 0]
                    for values in (start, local)
                )
                for row, block in enumerate(items.block[chosen].tolist()):
                    at, used = blocks[block], slice(len(blocks[block]))
                    feedback.before[at, index, client] = before[row, used]
                    feedback.after[at, index, client] = after[row, used]

        return observe

    def _of(self, client: int) -> Evaluator:
        if client not in self._single:
            self._single[client] = Evaluator(*self._arguments, clients=[client])
        return self._single[client]


def _compare(items: Items, updates: Parameters) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (items, slots) norms of updates and their cosines with the block's mean update."""
    blocks = int(items.block.max()) + 1
    device = next(iter(updates.values())).device
    square = inner = mean_square = torch.zeros((), device=device)
    where = torch.from_numpy(items.block).to(device)
    weights = torch.from_numpy(items.weight).to(device)
    for update in updates.values():
        weight = weights.view(-1, *(1,) * (update.ndim - 2))
        mean = update.new_zeros((update.shape[0], blocks, *update.shape[2:]))
        mean.index_add_(1, where, update * weight)
        square = square + _inner(update, update)
        inner = inner + _inner(update, mean[:, where])
        mean_square = mean_square + _inner(mean, mean)
    norm = torch.sqrt(square).nan_to_num(posinf=MAX_NORM).clamp(max=MAX_NORM)
    length = norm * torch.sqrt(mean_square)[where]
    cosine = (inner / length).nan_to_num(posinf=0.0, neginf=0.0).clamp(-1.0, 1.0)
    return norm.cpu().numpy(), cosine.cpu().numpy()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products (items, slots) of parameters (own, items, .., slots)."""
    return sum_classes(a * b).flatten(1, -2).sum(1)
