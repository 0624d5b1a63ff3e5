"""The federations of one group of blocks, laid end to end as the engine reads them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.models import Inputs, TorchModel
from fedhpo_gym.seeding import stream

MAX_STACK = 2**26
"""Numbers that the inputs of stacked federations hold at most."""
MAX_MEMBERSHIP = 2**24
"""Numbers that the 0/1 matrices of stacked federations hold at most, by which sums over a client's
rows are products; a federation that needs more is summed row by row, and by itself."""


def shapes(federations: Mapping[int, Federation], model: type[TorchModel]) -> dict[int, Hashable]:
    """Return, by seed, what must be equal for two federations to be stacked.

    It is what the shapes of tensors are made of: were they stacked without agreeing in it, the
    numbers of one would depend on the other. A model that cannot read several federations at once
    keeps each for itself.
    """
    found: dict[int, Hashable] = {}
    members: dict[Hashable, int] = {}
    for seed, federation in federations.items():
        matrix = federation.num_clients * len(SPLITS) * len(federation.labels)
        alone = len(federations) == 1 or matrix > MAX_MEMBERSHIP
        if alone or not model.stacks(federation):
            found[seed] = seed
            continue
        shape = federation.features.shape[1:], federation.num_classes, federation.label_counts
        number = members.get(shape, 0)
        members[shape] = number + 1
        size = len(federation.labels) * (int(np.prod(shape[0])) + 1)
        room = min(MAX_STACK // size, MAX_MEMBERSHIP // matrix)
        found[seed] = (shape, number // max(room, 1))
    return found


@dataclass(frozen=True, eq=False)
class PreparedFederation:
    """A federation as one model reads it.

    Attributes:
        federation: the data.
        model: the model that fits them.
        inputs: all rows.
        labels: (n,) labels.
    """

    federation: Federation
    model: TorchModel
    inputs: Inputs
    labels: Tensor

    @cached_property
    def initial(self) -> dict[str, NDArray[np.float32]]:
        """Parameters of every course of the seed before its first round."""
        return self.model.init(stream(self.federation.seed, "init"))


def prepare(
    federation: Federation,
    model: type[TorchModel],
    architecture: Iterable[tuple[str, float]],
    device: torch.device,
    precision: str = "float32",
) -> PreparedFederation:
    """Put a federation on a device as a model of some architecture and precision reads it."""
    made = model.for_federation(federation, device, **dict(architecture))
    made.precision = precision
    labels = torch.from_numpy(federation.labels.astype(np.int64)).to(device)
    return PreparedFederation(federation, made, made.inputs(federation.features), labels)


class Stack:
    """Federations of one shape, and a model that fits them all.

    Attributes:
        federations: the federations.
        model: the model.
        inputs: rows of all federations, one federation after the other.
        first_row: (federations,) index of each federation's first row.
        num_samples: (federations, clients) training samples.
        num_clients: clients of each.
    """

    def __init__(self, parts: Sequence[PreparedFederation]) -> None:
        """Lay federations end to end; one alone is left as it is."""
        self.parts = tuple(parts)
        self.federations = tuple(part.federation for part in parts)
        self.model = parts[0].model
        self.num_clients = self.federations[0].num_clients
        self.num_samples = np.stack([f.num_samples[:, 0] for f in self.federations])
        sizes = [len(f.labels) for f in self.federations]
        self.first_row = np.cumsum([0, *sizes[:-1]])
        self.inputs: Inputs = parts[0].inputs
        self._labels = parts[0].labels
        classes = self.federations[0].num_classes
        self._one_hot = torch.eye(classes, device=self._labels.device)
        if len(parts) > 1:
            self.inputs = torch.cat([_tensor(part.inputs) for part in parts])
            self._labels = torch.cat([part.labels for part in parts])

    def take(self, rows: Tensor) -> Tensor:
        """Return the inputs of some rows: the shape of `rows`, then the shape of one input."""
        if not isinstance(self.inputs, Tensor):
            return self.inputs[rows]
        found = self.inputs.index_select(0, rows.flatten())  # several times as fast as indexing
        return found.view(*rows.shape, *self.inputs.shape[1:])

    def targets(self, rows: Tensor) -> Tensor:
        """Return the one-hot labels (classes, *rows.shape) of some rows, float32."""
        labels = self._labels.index_select(0, rows.flatten())
        return self._one_hot.index_select(1, labels).view(-1, *rows.shape)

    def rows(self, federation: int, client: int) -> NDArray[np.int64]:
        """Return the training rows of a client of one of the federations."""
        own = self.federations[federation].clients[client][0]
        return own + self.first_row[federation] if federation else own

    def initial(self, which: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        """Return (own, blocks, ...) initial parameters of blocks on federations `which`."""
        names = self.parts[0].initial
        return {
            name: np.stack([part.initial[name] for part in self.parts], axis=1)[:, which]
            for name in names
        }


def _tensor(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)  # noqa: S101 - what `TorchModel.stacks` promises
    return inputs
