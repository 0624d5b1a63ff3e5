"""The rows of all cells of a stored grid: computed once for all environments that ask alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import StoredBackend
from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.envs.trial.ledger import spending_many
from fedhpo_gym.envs.trial.scores import ScoredRows, Scorer
from fedhpo_gym.envs.trial.setup import TrialSetup

CHUNK = 8192
"""Cells that are computed together: a few ten MB."""
PATIENCE = 128
"""Cells that are computed one by one before all are: so many cost as much as all cells do."""
MAX_KNOWN = 4
"""Grids whose rows are kept: the three seeds of a table, and their mean."""

_known: OrderedDict[tuple[Hashable, ...], ScoredRows] = OrderedDict()


class GridCells:
    """Rows of the cells of one setup; what they cost is left 0."""

    def __init__(self, setup: TrialSetup, backend: StoredBackend, scorer: Scorer) -> None:
        """Take what decides the rows.

        Raises:
            OffGridError: the backend does not store all cells of the setup's grid.
            InvalidArgumentError: likewise.
        """
        self._setup, self._backend, self._scorer = setup, backend, scorer
        self._space = setup.search_space
        self._asked = 0
        self._rows: ScoredRows | None = None
        self._few = np.zeros((0, 0))
        stored = {
            d.name: d for d in (*backend.space.dimensions, *backend.fidelity_space.dimensions)
        }
        for dimension in self._space.dimensions:
            for value in dimension.grid:
                stored[dimension.name].validate(value)

    def take(
        self,
        cells: Indices,
        seen: NDArray[np.float32],
        rngs: Sequence[np.random.Generator] | None = None,
    ) -> NDArray[np.float64]:
        """Return the (N, columns) numbers of (N,) cells, which the caller may write into.

        Args:
            cells: (N,) positions on the flattened grid.
            seen: (N, size) where observations go.
            rngs: (N,) random streams where evaluations are noisy: no two of a cell are then alike,
                and only what they truly are is kept.
        """
        rows = self._whole(len(cells))
        if rows is None or rngs is not None:
            few = self._compute(cells, rngs, None if rows is None else rows.take(cells))
            seen[:], self._few = few.seen, few.details
            return few.numbers
        rows.seen.take(cells, axis=0, out=seen, mode="clip")  # other modes buffer `out`
        return rows.numbers.take(cells, axis=0, mode="clip")

    def details(self, cells: Indices) -> NDArray[np.float64]:
        """Return the (N, columns) details of the cells that were taken last."""
        if self._rows is None or self._setup.noise is not None:
            return self._few if len(self._few) else self._compute(cells).details
        return self._rows.details.take(cells, axis=0, mode="clip")

    def _whole(self, count: int) -> ScoredRows | None:
        """Return the rows of all cells, or None while it is cheaper to compute some."""
        if self._rows is None:
            if not self._asked:
                self._rows = _known.get(self._key)
            self._asked += count
            if self._rows is None and self._asked > PATIENCE:
                self._rows = self._all()
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows: they are quick to compute."""
        return {**self.__dict__, "_rows": None, "_asked": 0, "_few": np.zeros((0, 0))}

    @property
    def _key(self) -> tuple[Hashable, ...]:
        setup = self._setup
        fixed = tuple(sorted(setup.fixed.items()))
        rule, backend = self._scorer.rule, self._backend
        return (
            setup.task,
            self._space,
            fixed,
            rule,
            self._scorer.width,
            backend.seeds,
            backend.fingerprint,
        )

    def _all(self) -> ScoredRows:
        if (found := _known.get(self._key)) is not None:
            return found
        size = self._space.grid_size
        chunks = [
            self._compute(np.arange(start, min(start + CHUNK, size)))
            for start in range(0, size, CHUNK)
        ]
        arrays = [
            np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in ("seen", "numbers", "details")
        ]
        _known[self._key] = rows = ScoredRows(*arrays)
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)
        return rows

    def _compute(
        self,
        cells: Indices,
        rngs: Sequence[np.random.Generator] | None = None,
        known: ScoredRows | None = None,
    ) -> ScoredRows:
        columns = self._columns(cells)
        spent = spending_many(self._setup.task, columns)
        return self._scorer.rows(self._backend.look_up(columns), spent, rngs=rngs, known=known)

    def _columns(self, cells: Indices) -> dict[str, NDArray[Any]]:
        """Return the values of all dimensions, also of the fixed ones, at some cells."""
        indices = np.unravel_index(cells, self._space.grid_shape)
        columns: dict[str, NDArray[Any]] = {
            name: np.full(len(cells), value) for name, value in self._setup.fixed.items()
        }
        for dimension, index in zip(self._space.dimensions, indices, strict=True):
            columns[dimension.name] = np.array(dimension.grid)[index]
        return columns
