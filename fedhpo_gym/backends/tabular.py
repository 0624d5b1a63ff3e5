"""Exact look-up of what was trained: all of a grid in a table, or the configurations of a pool."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import CheckedQuery, StoredBackend
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluations
from fedhpo_gym.space import Value
from fedhpo_gym.stored.catalogue import has_sample, has_table, open_sample, open_table
from fedhpo_gym.stored.pool import Pool, PoolCells
from fedhpo_gym.stored.table import seed_rows
from fedhpo_gym.tasks import Task


def open_tabular(task: Task, seed: int | None = None) -> StoredBackend:
    """Open the table of a task; where there is none but a sample, the sample as a pool."""
    kind = Pooled if has_sample(task.table_name) and not has_table(task.table_name) else Tabular
    return kind(task, seed)


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


class Pooled(StoredBackend):
    """Answers the configurations of a sample under one seed; an action goes to the nearest.

    Without a `seed`, it is the one under which most configurations were trained.
    """

    name = "tabular"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        sample = open_sample(task.identity).require_installed()
        self.pool = Pool(sample, seed)
        len(self.pool)  # a seed under which nothing was trained is refused now
        super().__init__(task, self.pool.seeds[0], sample.space, sample.fidelity_space)

    @property
    def fingerprint(self) -> str:
        return f"pool-sha256:{self.pool.sample.digest}"

    @property
    def num_samples(self) -> NDArray[np.int64]:
        samples: NDArray[np.int64] = self.pool.num_samples
        return samples

    @property
    def card(self) -> Mapping[str, Any]:
        return self.pool.sample.card

    def nearest(self, columns: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self.pool.nearest(columns)

    def nearest_query(self, query: CheckedQuery) -> CheckedQuery:
        return self.pool.nearest_query(*query)

    def cells(self, fixed: Mapping[str, Value]) -> PoolCells:
        return PoolCells(self.pool, fixed)

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return self.pool.look_up(columns, self.seeds)
