"""Where the rows of trials come from: all cells of a grid at once, or one query after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, ColumnBackend, StoredBackend
from fedhpo_gym.envs.batched.layout import Indices, Layout, Mask
from fedhpo_gym.envs.trial.cells import GridCells
from fedhpo_gym.envs.trial.draws import TrialDraws
from fedhpo_gym.envs.trial.ledger import (
    GridLedger,
    Ledger,
    spending_each,
    spending_many,
    spending_one,
    times_s,
)
from fedhpo_gym.envs.trial.scores import ROUNDS, TIME_S, ScoredRows, Scorer
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.objectives import Spent
from fedhpo_gym.space import Value

MOST_KNOWN = 4096
"""Cells whose query is remembered: searches come back to few, and incumbents to themselves."""


class RowSource(Protocol):
    """Answers one query per environment."""

    @property
    def handle_type(self) -> type | np.dtype[np.void]:
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

    def query(self, handle: Any) -> CheckedQuery:
        """Return the query of a handle."""

    def details(self) -> NDArray[np.float64]:
        """Return the (N, columns) details of the last queries; see `ScoredRows`."""


def make_row_source(
    setup: TrialSetup, layout: Layout, number: int, draws: TrialDraws | None = None
) -> RowSource:
    """Return the fastest source that can answer all queries of a setup without instances.

    Args:
        setup: what is asked of whom.
        layout: where the entries of an observation lie.
        number: N environments.
        draws: the random streams of their trials, where evaluations are noisy.
    """
    scorer = Scorer(setup, layout)
    if isinstance(setup.backend, StoredBackend) and setup.is_grid and scorer.can_batch:
        return GridSource(setup, setup.backend, scorer, number, draws)
    if isinstance(setup.backend, ColumnBackend) and scorer.can_batch and not setup.freeze_thaw:
        return ColumnSource(setup, setup.backend, scorer, number, draws)
    return BackendSource(setup, scorer, number, draws)


class BackendSource:
    """Asks the backend at every step."""

    handle_type: type = object

    def __init__(
        self, setup: TrialSetup, scorer: Scorer, number: int, draws: TrialDraws | None = None
    ) -> None:
        """Create the source of N environments."""
        self._draws = draws
        self._setup = setup
        self._scorer = scorer
        self._ledger = Ledger(setup, number)
        self._details = np.zeros((number, 0))

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        where = np.flatnonzero(active)
        handles = np.full(len(actions), None, dtype=object)
        numbers = np.zeros((len(actions), self._scorer.width))
        if where.size:
            queries = [self._setup.decode(actions[index]) for index in where]
            rngs = self._draws.of(where, list(map(_key, queries))) if self._draws else None
            rows = self._rows(queries, rngs)
            seen[where], numbers[where] = rows.seen, rows.numbers
            costs = self._ledger.pay(where, queries)
            if not self._details.size:
                self._details = np.zeros((len(actions), rows.details.shape[1]))
            self._details[where] = rows.details
            for index, query, cost in zip(where.tolist(), queries, costs, strict=True):
                numbers[index, TIME_S], numbers[index, ROUNDS] = cost.time_s, cost.rounds
                handles[index] = query
        return handles, numbers

    def _rows(
        self, queries: Sequence[CheckedQuery], rngs: Sequence[np.random.Generator] | None
    ) -> ScoredRows:
        setup = self._setup
        spent = spending_each(setup.task, queries)
        if self._scorer.can_batch:
            return self._scorer.rows(setup.backend.evaluate_many(queries), spent, rngs=rngs)
        alone = [setup.backend.evaluate(*query) for query in queries]
        each = [spending_one(setup.task, query) for query in queries]
        truth = Evaluations.stack(alone)

        def values_of(evaluations: Evaluations, _spent: Spent) -> NDArray[np.float64]:
            ones = alone if evaluations is truth else evaluations.like(alone)
            values = [
                [objective.compute(one, own) for objective in setup.objectives]
                for one, own in zip(ones, each, strict=True)
            ]
            return np.array(values)

        return self._scorer.rows(truth, spent, values_of, rngs)

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        self._ledger.restart(where)

    def query(self, handle: CheckedQuery) -> CheckedQuery:
        """See `RowSource.query`."""
        configuration, fidelity = handle
        return dict(configuration), fidelity  # the caller may write into it

    def details(self) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        return self._details


def _key(query: CheckedQuery) -> Hashable:
    configuration, fidelity = query
    return (*sorted(configuration.items()), *vars(fidelity).items())


class GridSource:
    """Takes the rows of the cells of a stored grid."""

    handle_type: type = np.intp

    def __init__(
        self,
        setup: TrialSetup,
        backend: StoredBackend,
        scorer: Scorer,
        number: int,
        draws: TrialDraws | None = None,
    ) -> None:
        """Create the source of N environments.

        Raises:
            OffGridError: the backend does not store all cells of the environment's grid.
            InvalidArgumentError: likewise.
        """
        self._setup, self._draws = setup, draws
        self._cells = GridCells(setup, backend, scorer)
        self._ledger = GridLedger(setup, number)
        self._asked = np.zeros(number, dtype=np.intp)
        self._known: dict[int, CheckedQuery] = {}

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        cells = self._setup.search_space.flat_grid_indices(actions)
        rngs = None
        if self._draws is not None:
            rngs = self._draws.of(np.arange(len(cells)), cells.tolist())
        numbers = self._cells.take(cells, seen, rngs)
        numbers[:, TIME_S], numbers[:, ROUNDS] = self._ledger.pay(cells)
        self._asked = cells
        return cells, numbers

    def restart(self, where: Indices) -> None:
        """See `RowSource.restart`."""
        self._ledger.restart(where)

    def query(self, handle: np.intp) -> CheckedQuery:
        """See `RowSource.query`."""
        number = int(handle)
        if number not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[number] = self._decoded(number)
        configuration, fidelity = self._known[number]
        return {**configuration}, fidelity

    def _decoded(self, number: int) -> CheckedQuery:
        values: dict[str, Value] = {}
        for dimension in reversed(self._setup.search_space.dimensions):
            number, position = divmod(number, len(dimension.grid))
            values[dimension.name] = dimension.grid[position]
        return self._setup.query(values)

    def details(self) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        return self._cells.details(self._asked)


class ColumnSource:
    """Asks the backend at every step, all queries together; see `RowSource`.

    A handle is the bytes of an action: a query is decoded from it when somebody wants to see it.
    """

    def __init__(
        self,
        setup: TrialSetup,
        backend: ColumnBackend,
        scorer: Scorer,
        number: int,
        draws: TrialDraws | None = None,
    ) -> None:
        """Create the source of N environments."""
        self._draws = draws
        self._setup, self._backend, self._scorer = setup, backend, scorer
        self._details = np.zeros((number, 0))

    @property
    def handle_type(self) -> np.dtype[np.void]:
        """See `RowSource.handle_type`."""
        return np.dtype((np.void, 8 * len(self._setup.search_space)))

    def answer(
        self, actions: NDArray[np.floating], active: Mask, seen: NDArray[np.float32]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """See `RowSource.answer`."""
        exact = np.array(actions, dtype=np.float64)
        numbers = np.zeros((len(exact), self._scorer.width))
        where = np.flatnonzero(active)
        if where.size:
            columns = self._columns(exact[where])
            task = self._setup.task
            spent = spending_many(task, columns)
            rngs = self._draws.of(where, where.tolist()) if self._draws else None
            rows = self._scorer.rows(self._backend.look_up(columns), spent, rngs=rngs)
            rows.numbers[:, TIME_S], rows.numbers[:, ROUNDS] = (
                times_s(task, columns),
                columns["round"],
            )
            seen[where], numbers[where] = rows.seen, rows.numbers
            if not self._details.size:
                self._details = np.zeros((len(exact), rows.details.shape[1]))
            self._details[where] = rows.details
        return exact.view(self.handle_type)[:, 0], numbers

    def _columns(self, actions: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        fixed = {name: np.full(len(actions), value) for name, value in self._setup.fixed.items()}
        return {**self._setup.search_space.decode_columns(actions), **fixed}

    def restart(self, where: Indices) -> None:
        """Nothing was paid for that could be forgotten."""

    def query(self, handle: np.void) -> CheckedQuery:
        """See `RowSource.query`."""
        return self._setup.decode(np.frombuffer(handle.tobytes(), dtype=np.float64))

    def details(self) -> NDArray[np.float64]:
        """See `RowSource.details`."""
        return self._details
