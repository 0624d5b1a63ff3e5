"""Where the rows of a trial vector environment come from: all cells at once, or one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import StoredBackend
from fedhpo_gym.envs.batched.layout import Indices, Mask
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.ledger import CostLedger
from fedhpo_gym.envs.trial.scores import ROUNDS, TIME_S, ScoredRows, Scorer
from fedhpo_gym.envs.trial.vector_ledger import FreezeThaw, sizes, times_s
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks.privacy import privacy_spent, privacy_spent_many

CHUNK = 8192
"""Cells that are computed together: a few ten MB."""

Query = tuple[dict[str, Value], Fidelity]


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


def make_row_source(env: TrialEnv, scorer: Scorer, num_envs: int) -> RowSource:
    """Return the fastest source that can answer all queries of an environment."""
    is_grid = all(dimension.values is not None for dimension in env.search_space.dimensions)
    if isinstance(env.backend, StoredBackend) and is_grid and scorer.can_batch:
        return GridSource(env, env.backend, scorer, num_envs)
    return BackendSource(env, scorer, num_envs)


class BackendSource:
    """Asks the backend at every step."""

    handle_type: type = object

    def __init__(self, env: TrialEnv, scorer: Scorer, num_envs: int) -> None:
        """Create the source of an environment."""
        self._env = env
        self._scorer = scorer
        self._ledgers = [CostLedger(env.task, env.freeze_thaw) for _ in range(num_envs)]

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        where = np.flatnonzero(active)
        handles = np.full(len(actions), None, dtype=object)
        numbers = np.zeros((len(actions), self._scorer.values.stop))
        if where.size:
            queries = [self._env.decode(actions[index]) for index in where]
            seen[where], numbers[where] = self._rows(queries)
            for index, query in zip(where, queries, strict=True):
                cost = self._ledgers[index].pay(*query)
                numbers[index, [TIME_S, ROUNDS]] = cost.time_s, cost.rounds
                handles[index] = query
        return handles, numbers

    def _rows(self, queries: Sequence[Query]) -> ScoredRows:
        backend = self._env.backend
        if self._scorer.can_batch:
            columns = _columns_of(queries)
            spent = privacy_spent_many(self._env.task, columns)
            return self._scorer.many(backend.evaluate_many(queries), spent)
        each = [
            self._scorer.one(backend.evaluate(*query), privacy_spent(self._env.task, *query))
            for query in queries
        ]
        seen, numbers = zip(*each, strict=True)
        return np.concatenate(seen), np.concatenate(numbers)

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        for index in where:
            self._ledgers[index].reset()

    def query(self, handle: Query) -> Query:
        """See `RowSource.query`."""
        return handle


class GridSource:
    """Computes the rows of every cell of a stored grid once; a step takes the ones it needs."""

    handle_type: type = np.intp

    def __init__(
        self, env: TrialEnv, backend: StoredBackend, scorer: Scorer, num_envs: int
    ) -> None:
        """Create the source of an environment; cells are computed when first asked for.

        Raises:
            OffGridError: the backend does not store all cells of the environment's grid.
            InvalidArgumentError: likewise.
        """
        self._env = env
        self._backend = backend
        self._scorer = scorer
        self._space = env.search_space
        stored = {
            d.name: d for d in (*backend.space.dimensions, *backend.fidelity_space.dimensions)
        }
        for dimension in self._space.dimensions:
            for value in dimension.grid:
                stored[dimension.name].validate(value)
        self._thaw: FreezeThaw | None = None
        if env.freeze_thaw:
            columns = self._columns(np.arange(self._space.grid_size))
            self._thaw = FreezeThaw(env, columns, num_envs)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows of the cells: they are quick to compute."""
        return {name: value for name, value in self.__dict__.items() if name != "_cells"}

    @cached_property
    def _cells(self) -> ScoredRows:
        env = self._env
        fixed = tuple(sorted(env.fixed.items()))
        query = (env.task, self._space, fixed, self._scorer.rule, self._backend.seeds)
        return _shared_cells(_Cells((*query, self._backend.fingerprint), self))

    def compute_cells(self) -> ScoredRows:
        """Return the (cells, ...) rows, the cost of a first evaluation included."""
        chunks = []
        for start in range(0, self._space.grid_size, CHUNK):
            cells = np.arange(start, min(start + CHUNK, self._space.grid_size))
            columns = self._columns(cells)
            spent = privacy_spent_many(self._env.task, columns)
            seen, numbers = self._scorer.many(self._backend.look_up(columns), spent)
            numbers[:, ROUNDS] = columns["round"]
            numbers[:, TIME_S] = times_s(
                self._env.task,
                sizes(self._env.task, columns),
                columns["round"],
                columns["client_sample_rate"],
            )
            chunks.append((seen, numbers))
        all_seen, all_numbers = zip(*chunks, strict=True)
        rows = np.concatenate(all_seen), np.concatenate(all_numbers)
        for array in rows:
            array.flags.writeable = False
        return rows

    def _columns(self, cells: Indices) -> dict[str, NDArray[Any]]:
        """Return the values of all dimensions, also of the fixed ones, at some cells."""
        indices = np.unravel_index(cells, self._space.grid_shape)
        columns: dict[str, NDArray[Any]] = {
            name: np.full(len(cells), value) for name, value in self._env.fixed.items()
        }
        for dimension, index in zip(self._space.dimensions, indices, strict=True):
            columns[dimension.name] = np.array(dimension.grid)[index]
        return columns

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        cells = self._space.flat_grid_indices(actions)
        all_seen, all_numbers = self._cells
        all_seen.take(cells, axis=0, out=seen, mode="clip")  # other modes buffer `out`
        numbers = all_numbers.take(cells, axis=0, mode="clip")
        if self._thaw is not None:
            numbers[:, TIME_S], numbers[:, ROUNDS] = self._thaw.pay(cells)
        return cells, numbers

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        if self._thaw is not None:
            self._thaw.restart(where)

    def query(self, handle: np.intp) -> Query:
        """See `RowSource.query`."""
        columns = self._columns(np.array([handle], dtype=np.intp))
        return self._env.query({name: columns[name].tolist()[0] for name in self._space.names})


def _columns_of(queries: Sequence[Query]) -> dict[str, NDArray[Any]]:
    rows = [{**configuration, **asdict(fidelity)} for configuration, fidelity in queries]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@dataclass(frozen=True)
class _Cells:
    """A query for all cells: equal ones have equal answers, whoever computes them."""

    content: tuple[Hashable, ...]
    source: GridSource = field(compare=False)


@lru_cache(maxsize=2)
def _shared_cells(asked: _Cells) -> ScoredRows:
    """Return rows that environments which differ in their number or budget share."""
    return asked.source.compute_cells()
