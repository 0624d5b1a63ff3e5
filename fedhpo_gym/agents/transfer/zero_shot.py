"""A greedy portfolio of configurations (Wistuba, Schilling, Schmidt-Thieme, 2015)."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import EnsembleSearch


def portfolio_gains(table: Array, covered: Array) -> Array:
    """Return (c,) how much a candidate adds to the best of every task, summed over tasks.

    `table` has (tasks, c) scores, `covered` the (tasks,) best of what is in the portfolio already.
    """
    return np.asarray(np.maximum(table - covered[:, None], 0.0).sum(axis=0))


class ZeroShotSearch(EnsembleSearch):
    """The next of a portfolio that is grown greedily for source tasks; its own scores are unused.

    What a configuration scores in a task, the task's model says. Where nothing is better than the
    portfolio in any task, the best on average is next.
    """

    eager = True

    def transfer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        table = self.means(candidates)
        tried = self.means(own.points) if len(own.points) else table.min(1, keepdims=True)
        gains = portfolio_gains(table, tried.max(axis=1))
        return np.asarray(gains + 1e-6 * table.mean(axis=0))
