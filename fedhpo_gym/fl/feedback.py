"""What is measured of a group: metrics of its models, and what clients report of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedhpo_gym.fl.evaluation import Evaluator, lay_out
from fedhpo_gym.fl.items import Items
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import fit, sum_classes
from fedhpo_gym.fl.prepared import PreparedFederation
from fedhpo_gym.fl.records import MAX_NORM, Feedback

Shown = Callable[[Items, Parameters, Parameters], None]
"""Is shown items, their parameters before, and their parameters after local training."""


class Observer(NamedTuple):
    """Adds updates to the means of their courses; then reports items, compared with the means."""

    add: Shown
    see: Shown


class GroupEvaluation:
    """Evaluates groups of courses of one federation and model shape.

    Attributes:
        prepared: what they are trained on.
    """

    def __init__(self, prepared: PreparedFederation, device: torch.device) -> None:
        """Lay nothing out yet: evaluators are made when they are asked for."""
        self.prepared = prepared
        self._device = device
        self._evaluators: dict[int | None, Evaluator] = {}

    def __call__(self, parameters: Parameters, client: int | None = None) -> NDArray[np.float32]:
        """Return (items, clients, splits, metrics) on the data of one client; of all for None."""
        if client not in self._evaluators:
            rows = lay_out(self.prepared.federation, None if client is None else [client])
            self._evaluators[client] = Evaluator(self.prepared, rows, self._device)
        return self._evaluators[client](parameters)

    def observer(
        self,
        positions: NDArray[np.int64],
        parameters: Parameters,
        feedback: Feedback,
        index: int,
        metrics: bool,
    ) -> Observer:
        """Return what fills in one round of a group's feedback.

        Args:
            positions: (courses,) where they stand in the batch.
            parameters: (own, courses, ..) each.
            feedback: of the batch.
            index: which of its rounds this is.
            metrics: whether models of clients are measured.
        """
        fixed = self.prepared.model.buffers
        mean = {n: torch.zeros_like(v) for n, v in parameters.items() if n not in fixed}

        def add(items: Items, start: Parameters, local: Parameters) -> None:
            where = torch.from_numpy(items.course).to(self._device)
            weight = torch.from_numpy(items.weight).to(self._device)
            for name, total in mean.items():
                update = local[name] - start[name]
                total.index_add_(1, where, update.mul_(fit(weight, update)))

        def see(items: Items, start: Parameters, local: Parameters) -> None:
            where = torch.from_numpy(items.course).to(self._device)
            compared = ((v - start[n], mean[n][:, where]) for n, v in local.items() if n in mean)
            at = positions[items.course], index, items.client
            feedback.sampled[at] = True
            feedback.update_norm[at], feedback.alignment[at] = _compare(compared)
            for client in np.unique(items.client).tolist() if metrics else ():
                chosen = np.flatnonzero(items.client == client)
                where = torch.from_numpy(chosen).to(self._device)
                at = positions[items.course[chosen]], index, client
                for values, out in ((start, feedback.before), (local, feedback.after)):
                    of_client = {name: value[:, where] for name, value in values.items()}
                    out[at] = self(of_client, client)[:, 0]

        return Observer(add, see)


def _compare(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (items,) norms of updates and their cosines with the means beside them."""
    found = [(_inner(u, u), _inner(u, mean), _inner(mean, mean)) for u, mean in pairs]
    square, inner, mean_square = (sum(parts[1:], parts[0]) for parts in zip(*found, strict=True))
    norm = torch.sqrt(square).nan_to_num(posinf=MAX_NORM).clamp(max=MAX_NORM)
    cosine = inner / (norm * torch.sqrt(mean_square))
    cosine = cosine.nan_to_num(posinf=0.0, neginf=0.0).clamp(-1.0, 1.0)
    return norm.cpu().numpy(), cosine.cpu().numpy()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products (items,) of parameters (own, items, ..)."""
    return sum_classes(a * b).reshape(a.shape[1], -1).sum(1)
