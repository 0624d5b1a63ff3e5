"""What trials on a grid cost, for many environments at once; `CostLedger` is the law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.ledger import charge
from fedhpo_gym.envs.trial import TrialEnv
from fedhpo_gym.envs.vector_layout import Indices
from fedhpo_gym.tasks import Task


def times_s(
    task: Task, rounds: NDArray[np.integer], rates: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the (B,) simulated seconds of evaluations at (B,) rounds and client sample rates."""
    each_round, round_of = np.unique(rounds, return_inverse=True)
    each_rate, rate_of = np.unique(rates, return_inverse=True)
    table = [[charge(task, int(r), float(q)).time_s for q in each_rate] for r in each_round]
    return np.array(table)[round_of, rate_of]


class FreezeThaw:
    """`CostLedger(freeze_thaw=True)` for N environments on a grid.

    Takes 4 N bytes for every configuration and client sample rate.
    """

    def __init__(self, env: TrialEnv, columns: Mapping[str, NDArray[Any]], num_envs: int) -> None:
        """Number what is paid for by itself: a configuration with a client sample rate.

        Args:
            env: one environment; its `search_space` is a grid.
            columns: (cells,) values of `round` and `client_sample_rate` at every cell.
            num_envs: N.
        """
        space = env.search_space
        names = [name for name in space.names if name != "round"]
        indices = dict(
            zip(
                space.names,
                np.unravel_index(np.arange(space.grid_size), space.grid_shape),
                strict=True,
            )
        )
        shape = tuple(len(space[name].grid) for name in names)
        self._key = np.ravel_multi_index(tuple(indices[name] for name in names), shape)
        self._round = columns["round"].astype(np.int32)
        rates, self._rate = np.unique(columns["client_sample_rate"], return_inverse=True)
        charged = np.arange(self._round.max() + 1)
        grid = np.meshgrid(charged, rates, indexing="ij")
        self._times = times_s(env.task, grid[0].ravel(), grid[1].ravel()).reshape(grid[0].shape)
        self._paid = np.zeros((num_envs, int(np.prod(shape))), dtype=np.int32)

    def restart(self, where: Indices) -> None:
        """Forget what some environments paid."""
        self._paid[where] = 0

    def pay(self, cells: Indices) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Charge one cell per environment; return (N,) simulated seconds and (N,) rounds."""
        mine = np.arange(len(cells)), self._key[cells]
        asked, paid = self._round[cells], self._paid[mine]
        rounds = np.maximum(asked - paid, 0)
        self._paid[mine] = np.maximum(asked, paid)
        return self._times[rounds, self._rate[cells]], rounds
