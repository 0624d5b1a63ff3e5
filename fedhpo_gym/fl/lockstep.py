"""One group of blocks: its state, and one round of it as tensor operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.algorithms import Algorithm
from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.minibatches import RoundBatches, client_order, draw_round, steps_per_epoch
from fedhpo_gym.fl.models import Model, Parameters
from fedhpo_gym.fl.models.base import Minibatch
from fedhpo_gym.fl.packing import SLOTS, Course, Group
from fedhpo_gym.seeding import stream


@dataclass(frozen=True, eq=False)
class Items:
    """The (block, client) pairs that train in a round, those with most steps first.

    Attributes:
        block: (items,) index of the block.
        client: (items,) index of the client.
        steps: (items,) number of local steps.
        weight: (items,) share of the client's samples among the block's sampled clients.
    """

    block: NDArray[np.int64]
    client: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything a round changes: parameters, server state, round, divergence, step sizes."""

    parameters: Parameters
    state: Parameters
    round: int
    diverged_at: NDArray[np.int64]
    rate: Tensor
    decay: Tensor


class Lockstep:
    """Trains all courses of a group, round by round.

    Attributes:
        parameters: global parameters, (.., blocks, .., slots) each.
        state: the server's state, likewise.
        round: number of finished rounds.
        diverged_at: (blocks, slots) round in which a course left the finite numbers; 0 if none.
    """

    def __init__(
        self,
        group: Group,
        courses: Sequence[Course],
        federation: Federation,
        model: Model,
        algorithm: Algorithm,
        device: torch.device,
    ) -> None:
        """Initialise every course of the group from its seed."""
        self.group = group
        self._federation = federation
        self._model = model
        self._algorithm = algorithm
        self._device = device
        self._features = model.inputs(federation.features)
        one_hot = np.eye(federation.num_classes, dtype=np.float32)[federation.labels]
        self._targets = torch.from_numpy(one_hot).to(device)
        rate = self._per_slot(courses, "learning_rate")
        decay = 1.0 - rate * self._per_slot(courses, "weight_decay")
        self._rate, self._decay = self._tensor(rate), self._tensor(decay)
        self._server = {
            name: self._tensor(self._per_slot(courses, name))
            for name in algorithm.server_hyperparameters
        }
        self.parameters = self._initial()
        self.state = algorithm.init_state(self.parameters)
        self.round = 0
        self.diverged_at = np.zeros((len(group.blocks), SLOTS), dtype=np.int64)

    def snapshot(self) -> Snapshot:
        """Return a copy of everything a round changes."""
        return Snapshot(
            _copy(self.parameters),
            _copy(self.state),
            self.round,
            self.diverged_at.copy(),
            self._rate.clone(),
            self._decay.clone(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, which can be used again."""
        self.parameters, self.state = _copy(snapshot.parameters), _copy(snapshot.state)
        self.round = snapshot.round
        self.diverged_at = snapshot.diverged_at.copy()
        self._rate, self._decay = snapshot.rate.clone(), snapshot.decay.clone()

    def step(self) -> None:
        """Run one communication round of every course."""
        items = self._sample()
        clients, column = np.unique(items.client, return_inverse=True)
        epochs = max(block.num_epochs for block in self.group.blocks)
        batches = draw_round(self._federation, self.round, clients, self.group.batch_size, epochs)
        local = self._gather(items)
        self._train(local, items, self._index(column), batches)
        average = self._average(local, items)
        updated, state = self._algorithm.server_update(
            self.parameters, average, self.state, self._server
        )
        self.round += 1
        self._commit(updated, state)

    def _sample(self) -> Items:
        order = client_order(self._federation.seed, self.round, self._federation.num_clients)
        sizes = self._federation.num_samples[:, 0]
        rows = []
        for index, block in enumerate(self.group.blocks):
            sampled = np.sort(order[: block.num_sampled])
            for client in sampled:
                steps = block.num_epochs * steps_per_epoch(
                    int(sizes[client]), self.group.batch_size
                )
                rows.append((index, client, steps, sizes[client] / sizes[sampled].sum()))
        block_of, client_of, steps_of, weight = (np.array(x) for x in zip(*rows, strict=True))
        first = np.argsort(-steps_of, kind="stable")
        return Items(
            block_of[first], client_of[first], steps_of[first], weight[first].astype(np.float32)
        )

    def _train(
        self, local: Parameters, items: Items, column: Tensor, batches: RoundBatches
    ) -> None:
        rows = self._index(batches.rows)
        block = self._index(items.block)
        # Everything a step reads is laid out by item before the first step: a step of small
        # courses costs as much as its number of tensor operations.
        x = self._features[rows].index_select(1, column)
        targets = self._targets[rows].permute(0, 3, 1, 2).index_select(2, column).unsqueeze(-1)
        weights = self._tensor(batches.weights).index_select(1, column).unsqueeze(-1)
        rates, decay = weights * self._rate[block], self._decay[block]
        # Items are sorted by their number of steps: the ones still training are a prefix.
        active = np.searchsorted(-items.steps, -np.arange(items.steps[0]), side="left").tolist()
        for step, count in enumerate(active):
            batch = Minibatch(
                x=x[step, :count],
                targets=targets[step, :, :count],
                rates=rates[step, :count],
                decay=decay[:count],
            )
            self._model.sgd_step({name: p[:, :count] for name, p in local.items()}, batch)

    def _gather(self, items: Items) -> Parameters:
        block = self._index(items.block)
        return {name: value.index_select(1, block) for name, value in self.parameters.items()}

    def _average(self, local: Parameters, items: Items) -> Parameters:
        """Average each block's clients, always in the order of the clients."""
        average = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        for client in np.unique(items.client):
            chosen = np.flatnonzero(items.client == client)
            block, index = self._index(items.block[chosen]), self._index(chosen)
            weight = self._tensor(items.weight[chosen])[:, None, None]
            for name, value in average.items():
                value.index_add_(1, block, local[name].index_select(1, index) * weight)
        return average

    def _commit(self, parameters: Parameters, state: Parameters) -> None:
        """Accept a round; a course that met a non-finite number keeps its last finite state."""
        finite = torch.stack([_finite(value) for value in parameters.values()]).all(0)
        self.freeze(~finite.cpu().numpy())
        if (self.diverged_at > 0).any():
            keep = torch.from_numpy(self.diverged_at == 0)[:, None, :].to(self._device)
            parameters = _where(keep, parameters, self.parameters)
            state = _where(keep, state, self.state)
        self.parameters, self.state = parameters, state

    def freeze(self, diverged: NDArray[np.bool_]) -> None:
        """Mark (blocks, slots) courses as diverged in this round and stop training them."""
        new = diverged & (self.diverged_at == 0)
        if not new.any():
            return
        self.diverged_at[new] = self.round
        stopped = torch.from_numpy(new)[:, None, :].to(self._device)
        self._rate = torch.where(stopped, 0.0, self._rate)
        self._decay = torch.where(stopped, 1.0, self._decay)

    def _initial(self) -> Parameters:
        drawn = self._model.init(stream(self._federation.seed, "init"))
        blocks = len(self.group.blocks)
        return {
            name: torch.from_numpy(value)[:, None, ..., None]
            .expand(value.shape[0], blocks, *value.shape[1:], SLOTS)
            .contiguous()
            .to(self._device)
            for name, value in drawn.items()
        }

    def _per_slot(self, courses: Sequence[Course], name: str) -> NDArray[np.float64]:
        values = np.zeros((len(self.group.blocks), 1, SLOTS))
        for index, block in enumerate(self.group.blocks):
            for slot, position in enumerate(block.courses):
                values[index, 0, slot] = courses[position].configuration[name]
        return values

    def _tensor(self, values: NDArray[np.floating]) -> Tensor:
        with np.errstate(over="ignore"):  # an absurd step size is infinite: its course diverges
            return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self._device)

    def _index(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _finite(value: Tensor) -> Tensor:
    """(blocks, slots): all numbers of a course's tensor are finite."""
    return torch.isfinite(value).all(0).flatten(1, -2).all(1)


def _where(keep: Tensor, new: Parameters, old: Parameters) -> Parameters:
    return {name: torch.where(keep, value, old[name]) for name, value in new.items()}


def _copy(values: Parameters) -> Parameters:
    return {name: value.clone() for name, value in values.items()}
