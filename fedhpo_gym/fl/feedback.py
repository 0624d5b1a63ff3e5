"""What is measured of a group: metrics of its models, and what clients report of a round."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl.evaluation import Evaluator, lay_out
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.lockstep import Lockstep, Observer
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import fit, sum_classes
from fedhpo_gym.fl.records import MAX_NORM, Feedback
from fedhpo_gym.fl.stack import PreparedFederation, Stack

OfClients = dict[tuple[PreparedFederation, int], Evaluator]
"""Evaluators of single clients."""


class GroupEvaluation:
    """Evaluates the courses of groups on one stack of federations."""

    def __init__(self, stack: Stack, of_clients: OfClients, device: torch.device) -> None:
        """Evaluate on the federations of a stack; `of_clients` is shared with other stacks."""
        self._stack = stack
        self._device = device
        self._all: Evaluator | None = None
        self._of_clients = of_clients

    def __call__(self, lockstep: Lockstep) -> NDArray[np.float32]:
        """Return (blocks, slots, clients, splits, metrics) of the model each client would use."""
        which = lockstep.roster.federation
        if not lockstep.personal:
            if self._all is None:
                rows = [lay_out(part.federation) for part in self._stack.parts]
                self._all = Evaluator(self._stack, rows, self._device)
            several = len(self._stack.parts) > 1
            return self._all(lockstep.parameters, which if several else None)
        clients = range(self._stack.num_clients)
        metrics = [self._of_client(c, which, lockstep.client_parameters(c)) for c in clients]
        return np.concatenate(metrics, axis=2)

    def observer(
        self, lockstep: Lockstep, feedback: Feedback, index: int, metrics: bool = True
    ) -> Observer:
        """Return what fills in one round of a group's feedback, with or without the metrics."""
        fixed = self._stack.model.buffers
        positions, used = lockstep.positions, lockstep.positions >= 0
        mean = {n: torch.zeros_like(v) for n, v in lockstep.parameters.items() if n not in fixed}

        def add(items: Items, start: Parameters, local: Parameters) -> None:
            where = torch.from_numpy(items.block).to(self._device)
            weight = torch.from_numpy(items.weight).to(self._device)[:, None, None]
            for name, total in mean.items():
                update = local[name] - start[name]
                total.index_add_(1, where, update.mul_(fit(weight, update)))

        def see(items: Items, start: Parameters, local: Parameters) -> None:
            where = torch.from_numpy(items.block).to(self._device)
            compared = ((v - start[n], mean[n][:, where]) for n, v in local.items() if n in mean)
            norm, alignment = _compare(compared)
            row, slot = np.nonzero(used[items.block])
            at = positions[items.block[row], slot], index, items.client[row]
            feedback.sampled[at] = True
            feedback.update_norm[at] = norm[row, slot]
            feedback.alignment[at] = alignment[row, slot]
            for client in np.unique(items.client).tolist() if metrics else ():
                chosen = np.flatnonzero(items.client == client)
                where = torch.from_numpy(chosen).to(self._device)
                row, slot = np.nonzero(used[items.block[chosen]])
                at = positions[items.block[chosen][row], slot], index, client
                for values, out in ((start, feedback.before), (local, feedback.after)):
                    of_client = {k: v[:, where] for k, v in values.items()}
                    found = self._of_client(client, items.federation[chosen], of_client)
                    out[at] = found[row, slot, 0]

        return Observer(add, see)

    def _of_client(
        self, client: int, federations: NDArray[np.int64], parameters: Parameters
    ) -> NDArray[np.float32]:
        """Return (items, slots, 1, splits, metrics) on one client of each item's federation."""
        slots = next(iter(parameters.values())).shape[-1]
        shape = (len(federations), slots, 1, len(SPLITS), len(METRICS))
        metrics = np.empty(shape, dtype=np.float32)
        # Clients of different federations have different numbers of rows: one after the other.
        for federation in np.unique(federations).tolist():
            chosen = np.flatnonzero(federations == federation)
            where = torch.from_numpy(chosen).to(self._device)
            part = {name: value[:, where] for name, value in parameters.items()}
            metrics[chosen] = self._evaluator(federation, client)(part)
        return metrics

    def _evaluator(self, federation: int, client: int) -> Evaluator:
        part = self._stack.parts[federation]
        key = part, client
        if key not in self._of_clients:
            rows = lay_out(part.federation, [client])
            self._of_clients[key] = Evaluator(Stack([part]), [rows], self._device)
        return self._of_clients[key]


def _compare(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (items, slots) norms of updates and their cosines with the means beside them."""
    found = [(_inner(u, u), _inner(u, mean), _inner(mean, mean)) for u, mean in pairs]
    square, inner, mean_square = (sum(parts[1:], parts[0]) for parts in zip(*found, strict=True))
    norm = torch.sqrt(square).nan_to_num(posinf=MAX_NORM).clamp(max=MAX_NORM)
    cosine = inner / (norm * torch.sqrt(mean_square))
    cosine = cosine.nan_to_num(posinf=0.0, neginf=0.0).clamp(-1.0, 1.0)
    return norm.cpu().numpy(), cosine.cpu().numpy()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products (items, slots) of parameters (own, items, .., slots)."""
    return sum_classes(a * b).flatten(1, -2).sum(1)
