"""A federation as compiled code reads it for one shape of a model."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl.compiled.evaluation import measure
from fedhpo_gym.fl.compiled.sums import BLOCK
from fedhpo_gym.fl.compiled.training import Rows
from fedhpo_gym.fl.models.compiled import CompiledModel, flat_rows


class Problem:
    """What courses of one federation and model shape have in common.

    Attributes:
        federation: the data.
        model: the model that fits them.
        layout: where its parameters stand.
        data: what compiled code reads.
        train_rows: training rows of every client.
        num_samples: (clients,) how many these are.
    """

    def __init__(self, federation: Federation, model: CompiledModel) -> None:
        """Lay the data out."""
        self.federation = federation
        self.model = model
        self.layout = model.layout
        self.data = model.data(federation)
        self.train_rows = Rows(*flat_rows([own[0] for own in federation.clients]))
        self.num_samples = np.ascontiguousarray(federation.num_samples[:, 0])
        self._labels = np.ascontiguousarray(federation.labels, dtype=np.int64)

    @cached_property
    def _rows(self) -> Rows:
        """Rows of every client and split, which only measuring needs."""
        return Rows(*flat_rows([rows for own in self.federation.clients for rows in own]))

    @cached_property
    def initial(self) -> NDArray[np.float32]:
        """(numbers,) of every course of the seed before its first round."""
        drawn = self.model.init(stream(self.federation.seed, "init"))
        numbers = np.zeros((1, self.layout.size), dtype=np.float32)
        self.layout.write(numbers, {name: value[:, None] for name, value in drawn.items()})
        found: NDArray[np.float32] = numbers[0]
        return found

    def measure(
        self, models: NDArray[np.float32], clients: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return (models, clients, splits, metrics).

        Args:
            models: (models, numbers) parameters.
            clients: (models, clients) whose data each is measured on.
        """
        count, width = clients.shape
        groups = (clients[:, :, None] * len(SPLITS) + np.arange(len(SPLITS))).reshape(count, -1)
        out = np.empty((*groups.shape, len(METRICS)), dtype=np.float32)
        memory = self.model.memory(BLOCK)
        measure(self.data, self._rows, self._labels, groups, models, memory, out)
        return out.reshape(count, width, len(SPLITS), len(METRICS))
