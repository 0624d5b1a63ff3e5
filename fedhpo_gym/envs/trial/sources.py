"""Where the rows of trials come from: all cells of a grid at once, or one query after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import StoredBackend
from fedhpo_gym.envs.batched.layout import Indices, Mask
from fedhpo_gym.envs.trial.ledger import GridLedger, Ledger
from fedhpo_gym.envs.trial.scores import ROUNDS, TIME_S, ScoredRows, Scorer
from fedhpo_gym.envs.trial.setup import Query, TrialSetup
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.space import Value
from fedhpo_gym.tasks.privacy import privacy_spent, privacy_spent_each, privacy_spent_many

CHUNK = 8192
"""Cells that are computed together: a few ten MB."""


class RowSource(Protocol):
    """Answers one query per environment."""

    @property
    def handle_type(self) -> type:
        """Type of the handle of a query: an array of them has this type."""

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return (N,) handles of the queries and (N, columns) numbers; see `Scorer`.

        Args:
            actions: (N, n) actions.
            active: (N,) environments that ask; rows of the others mean nothing.
            seen: (N, size) where the observations go.
        """

    def restart(self, where: Indices) -> None:
        """Forget what some environments paid for."""

    def query(self, handle: Any) -> Query:
        """Return the query of a handle."""

    def details(self, index: int, handle: Any) -> NDArray[np.float64]:
        """Return the details of the last query of an environment; see `ScoredRows`."""


def make_row_source(setup: TrialSetup, scorer: Scorer, number: int) -> RowSource:
    """Return the fastest source that can answer all queries of a setup."""
    is_grid = all(dimension.values is not None for dimension in setup.search_space.dimensions)
    if isinstance(setup.backend, StoredBackend) and is_grid and scorer.can_batch:
        return GridSource(setup, setup.backend, scorer, number)
    return BackendSource(setup, scorer, number)


class BackendSource:
    """Asks the backend at every step."""

    handle_type: type = object

    def __init__(self, setup: TrialSetup, scorer: Scorer, number: int) -> None:
        """Create the source of N environments."""
        self._setup = setup
        self._scorer = scorer
        self._ledger = Ledger(setup, number)
        self._details: dict[int, NDArray[np.float64]] = {}

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        where = np.flatnonzero(active)
        handles = np.full(len(actions), None, dtype=object)
        numbers = np.zeros((len(actions), self._scorer.values.stop))
        if where.size:
            queries = [self._setup.decode(actions[index]) for index in where]
            rows = self._rows(queries)
            seen[where], numbers[where] = rows.seen, rows.numbers
            costs = self._ledger.pay(where, queries)
            for index, query, cost, details in zip(
                where.tolist(), queries, costs, rows.details, strict=True
            ):
                numbers[index, TIME_S], numbers[index, ROUNDS] = cost.time_s, cost.rounds
                handles[index] = query
                self._details[index] = details
        return handles, numbers

    def _rows(self, queries: Sequence[Query]) -> ScoredRows:
        setup = self._setup
        spent = privacy_spent_each(setup.task, queries)
        if self._scorer.can_batch:
            return self._scorer.rows(setup.backend.evaluate_many(queries), spent)
        alone = [setup.backend.evaluate(*query) for query in queries]
        ledgers = [privacy_spent(setup.task, *query) for query in queries]
        values = [
            [objective.compute(evaluation, ledger) for objective in setup.objectives]
            for evaluation, ledger in zip(alone, ledgers, strict=True)
        ]
        return self._scorer.rows(Evaluations.stack(alone), spent, np.array(values))

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        self._ledger.restart(where)

    def query(self, handle: Query) -> Query:
        """See `RowSource.query`."""
        configuration, fidelity = handle
        return dict(configuration), fidelity  # the caller may write into it

    def details(self, index: int, handle: Query) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        return self._details[index]


class GridSource:
    """Computes the rows of every cell of a stored grid once; a step takes the ones it needs."""

    handle_type: type = np.intp

    def __init__(
        self, setup: TrialSetup, backend: StoredBackend, scorer: Scorer, number: int
    ) -> None:
        """Create the source of N environments; cells are computed when first asked for.

        Raises:
            OffGridError: the backend does not store all cells of the environment's grid.
            InvalidArgumentError: likewise.
        """
        self._setup = setup
        self._backend = backend
        self._scorer = scorer
        self._space = setup.search_space
        stored = {
            d.name: d for d in (*backend.space.dimensions, *backend.fidelity_space.dimensions)
        }
        for dimension in self._space.dimensions:
            for value in dimension.grid:
                stored[dimension.name].validate(value)
        self._number = number

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows of the cells: they are quick to compute."""
        return {name: value for name, value in self.__dict__.items() if name != "_cells"}

    @cached_property
    def _ledger(self) -> GridLedger:
        return GridLedger(self._setup, self._number)

    @cached_property
    def _cells(self) -> ScoredRows:
        setup = self._setup
        fixed = tuple(sorted(setup.fixed.items()))
        content = (setup.task, self._space, fixed, self._scorer.rule, self._backend.seeds)
        return _shared_cells(_Cells((*content, self._backend.fingerprint), self))

    def compute_cells(self) -> ScoredRows:
        """Return the rows of all cells."""
        chunks = []
        for start in range(0, self._space.grid_size, CHUNK):
            cells = np.arange(start, min(start + CHUNK, self._space.grid_size))
            columns = self._columns(cells)
            spent = privacy_spent_many(self._setup.task, columns)
            rows = self._scorer.rows(self._backend.look_up(columns), spent)
            rows.numbers[:, TIME_S], rows.numbers[:, ROUNDS] = self._ledger.full(cells)
            chunks.append(rows)
        arrays = [
            np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in ("seen", "numbers", "details")
        ]
        for array in arrays:
            array.flags.writeable = False
        return ScoredRows(*arrays)

    def _columns(self, cells: Indices) -> dict[str, NDArray[Any]]:
        """Return the values of all dimensions, also of the fixed ones, at some cells."""
        indices = np.unravel_index(cells, self._space.grid_shape)
        columns: dict[str, NDArray[Any]] = {
            name: np.full(len(cells), value) for name, value in self._setup.fixed.items()
        }
        for dimension, index in zip(self._space.dimensions, indices, strict=True):
            columns[dimension.name] = np.array(dimension.grid)[index]
        return columns

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        cells = self._space.flat_grid_indices(actions)
        rows = self._cells
        rows.seen.take(cells, axis=0, out=seen, mode="clip")  # other modes buffer `out`
        numbers = rows.numbers.take(cells, axis=0, mode="clip")
        if self._setup.freeze_thaw:
            numbers[:, TIME_S], numbers[:, ROUNDS] = self._ledger.pay(cells)
        return cells, numbers

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        if self._setup.freeze_thaw:
            self._ledger.restart(where)

    def query(self, handle: np.intp) -> Query:
        """See `RowSource.query`."""
        values: dict[str, Value] = {}
        rest = int(handle)
        for dimension in reversed(self._space.dimensions):
            rest, position = divmod(rest, len(dimension.grid))
            values[dimension.name] = dimension.grid[position]
        return self._setup.query(values)

    def details(self, index: int, handle: np.intp) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        found: NDArray[np.float64] = self._cells.details[handle]
        return found


@dataclass(frozen=True)
class _Cells:
    """A query for all cells: equal ones have equal answers, whoever computes them."""

    content: tuple[Hashable, ...]
    source: GridSource = field(compare=False)


@lru_cache(maxsize=2)
def _shared_cells(asked: _Cells) -> ScoredRows:
    """Return rows that environments which differ in their number or budget share."""
    return asked.source.compute_cells()
