"""What trials on a grid cost, for many environments at once; `CostLedger` is the law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.ledger import charge
from fedhpo_gym.tasks import Task


def sizes(task: Task, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return the (B,) parameters of the models of (B,) configurations, given by columns."""
    names = task.architecture
    if not names:
        return np.full(len(columns["round"]), task.num_parameters)
    values = np.stack([columns[name] for name in names], axis=-1)
    rows, row_of = np.unique(values, axis=0, return_inverse=True)
    found = [task.parameters_of(dict(zip(names, row, strict=True))) for row in rows.tolist()]
    return np.array(found)[row_of.reshape(-1)]


def times_s(
    task: Task,
    num_parameters: NDArray[np.integer],
    rounds: NDArray[np.integer],
    rates: NDArray[np.floating],
) -> NDArray[np.float64]:
    """Return the (B,) simulated seconds of evaluations of (B,) models, rounds and sample rates."""
    axes = [np.unique(values, return_inverse=True) for values in (num_parameters, rounds, rates)]
    (each_size, _), (each_round, _), (each_rate, _) = axes
    seconds = [
        [[charge(task, int(s), int(r), float(q)).time_s for q in each_rate] for r in each_round]
        for s in each_size
    ]
    table = np.array(seconds, dtype=np.float64)
    times: NDArray[np.float64] = table[tuple(where for _, where in axes)]
    return times


class FreezeThaw:
    """`CostLedger(freeze_thaw=True)` for N environments on a grid.

    Takes 4 N bytes for every configuration and client sample rate.
    """

    def __init__(self, env: TrialEnv, columns: Mapping[str, NDArray[Any]], num_envs: int) -> None:
        """Number what is paid for by itself: a configuration with a client sample rate.

        Args:
            env: one environment; its `search_space` is a grid.
            columns: (cells,) values of every dimension at every cell.
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
        models, self._model = np.unique(sizes(env.task, columns), return_inverse=True)
        rates, self._rate = np.unique(columns["client_sample_rate"], return_inverse=True)
        grid = np.meshgrid(models, np.arange(self._round.max() + 1), rates, indexing="ij")
        times = times_s(env.task, *(values.ravel() for values in grid))
        self._times = times.reshape(grid[0].shape)
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
        return self._times[self._model[cells], rounds, self._rate[cells]], rounds
