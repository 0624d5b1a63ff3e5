"""Exact look-up in a stored table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import StoredBackend
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluations
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.stored.table import seed_rows
from fedhpo_gym.tasks import Task


class Tabular(StoredBackend):
    """Answers the grid points of a table, and nothing else."""

    name = "tabular"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        table = open_table(task.identity)
        table.require_installed()
        super().__init__(task, seed, table.space, table.fidelity_space)
        self._rows = seed_rows(self.seeds, table.seeds, f"table {table.name}")
        self._table = table

    @property
    def fingerprint(self) -> str:
        return f"table-sha256:{self._table.digest}"

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return self._table.num_samples[self._rows]

    @property
    def card(self) -> Mapping[str, Any]:
        return self._table.card

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of older versions: of the arrays alone, or of an older format."""
        return tuple(f"table-sha256:{sha256}" for sha256 in self._table.former)

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return self._table.look_up(columns, self.seeds)
