"""A federation as the engine reads it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.models import TorchModel


class PreparedFederation:
    """A federation on a device, as a model of some architecture and precision reads it.

    Attributes:
        federation: the data.
        model: the model that fits them.
        inputs: all rows.
        num_samples: (clients,) training samples.
        num_clients: clients.
    """

    def __init__(
        self,
        federation: Federation,
        model: type[TorchModel],
        architecture: Iterable[tuple[str, float]],
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        """Put a federation on a device; `architecture` shapes the model."""
        self.federation = federation
        self.model = model.for_federation(federation, device, **dict(architecture))
        self.model.precision = precision
        self.inputs = self.model.inputs(federation.features)
        self.num_samples = federation.num_samples[:, 0]
        self.num_clients = federation.num_clients
        self._labels = torch.from_numpy(federation.labels.astype(np.int64)).to(device)
        self._one_hot = torch.eye(federation.num_classes, device=device)

    @cached_property
    def initial(self) -> dict[str, NDArray[np.float32]]:
        """Parameters of every course of the seed before its first round."""
        return self.model.init(stream(self.federation.seed, "init"))

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
