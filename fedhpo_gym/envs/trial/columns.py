"""Rows of trials from a backend that takes queries as columns: no loop over environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, ColumnBackend
from fedhpo_gym.envs.batched.layout import Indices, Mask
from fedhpo_gym.envs.trial.draws import TrialDraws
from fedhpo_gym.envs.trial.ledger import spending_many, times_s
from fedhpo_gym.envs.trial.scores import ROUNDS, TIME_S, Scorer
from fedhpo_gym.envs.trial.setup import TrialSetup


class ColumnSource:
    """Asks the backend at every step, all queries together; see `sources.RowSource`.

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
