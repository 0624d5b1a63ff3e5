"""The simulated clock: what trials cost, with or without freeze-thaw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.envs.batched.layout import Indices
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Cost
from fedhpo_gym.objectives import COST_NAMES, Costs, Spending
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.tasks import Task, decisive_names, work_of
from fedhpo_gym.tasks.privacy import privacy_spent, privacy_spent_each, privacy_spent_many
from fedhpo_gym.tasks.work import EPOCHS

MAX_PRICES = 4096
_Rounds = TypeVar("_Rounds", int, NDArray[np.int32])


def charge(
    task: Task, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
) -> Cost:
    """Return what some rounds of a configuration's course cost, by the rule of the task's system.

    Raises:
        InvalidArgumentError: the rule counts samples, which no trial knows before it is made.
    """
    return task.system.cost(work_of(task, configuration, rounds, client_sample_rate))


def times_s(task: Task, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the (B,) simulated seconds of `charge`, bit for bit.

    Args:
        task: the task.
        columns: (B,) values of every dimension of the search space and the fidelity, by name.

    Raises:
        InvalidArgumentError: see `charge`.
    """
    rounds, rates = columns["round"], columns["client_sample_rate"]
    names = decisive_names(task)
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))
    if not names:
        queries = [()] * len(rounds)
    known = {query: index for index, query in enumerate(dict.fromkeys(queries))}
    works = [work_of(task, dict(zip(names, query, strict=True)), 1, 1.0) for query in known]
    which = np.array([known[query] for query in queries], dtype=np.intp)
    return task.system.times_s(works, which, rounds, rates)


def spending_many(task: Task, columns: Mapping[str, NDArray[Any]]) -> Spending:
    """Return what B queries spend if nothing of them was paid for before.

    Args:
        task: the task.
        columns: see `times_s`.
    """
    return Spending(privacy_spent_many(task, columns), lambda: _costs(task, columns))


def spending_each(task: Task, queries: Sequence[CheckedQuery]) -> Spending:
    """Return what some queries spend if nothing of them was paid for before."""

    def find_costs() -> Costs:
        rows = [vars(fidelity) for _, fidelity in queries]
        asked = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return _costs(task, {**task.space.columns_of([one for one, _ in queries]), **asked})

    return Spending(privacy_spent_each(task, queries), find_costs)


def unmoved(setup: TrialSetup) -> tuple[str, ...]:
    """Return the objectives that no action of a setup changes: costs that its fixed values decide.

    Looked for at the middle of the search space and at both ends of each of its dimensions.
    """
    middle = np.zeros(setup.action_space.shape, dtype=np.float32)
    ends = np.concatenate([np.diag(middle + end) for end in (-1.0, 1.0)]).astype(np.float32)
    spent = spending_each(setup.task, [setup.decode(action) for action in (middle, *ends)])
    count = len(ends) + 1
    shape = (count, 1, 1, len(SPLITS), len(METRICS))
    nothing = Evaluations(
        np.zeros(shape, dtype=np.float32),
        np.ones((1, 1, len(SPLITS)), dtype=np.int64),
        np.ones((count, 1), dtype=np.int64),
        np.zeros((count, 1), dtype=np.bool_),
    )
    values = {
        one.name: one.compute_many(nothing, spent)
        for one in setup.objectives
        if not one.reads_clients and one.compute_many is not None and one not in setup.own
    }
    return tuple(name for name, found in values.items() if (found == found[0]).all())


def spending_one(task: Task, query: CheckedQuery) -> Spending:
    """Return what one query spends if nothing of it was paid for before."""
    configuration, (rounds, rate) = query[0], vars(query[1]).values()

    def find_costs() -> Costs:
        found = _cost_of(task, configuration, rounds, rate)
        return dict(zip(COST_NAMES, found, strict=True))

    return Spending(privacy_spent(task, *query), find_costs)


def _costs(task: Task, columns: Mapping[str, NDArray[Any]]) -> Costs:
    """Return (B,) costs by each of `COST_NAMES`; equal queries are priced once."""
    deciding = {*decisive_names(task), *(d for d in columns if d.partition("@")[0] == EPOCHS)}
    names = ["round", "client_sample_rate", *sorted(deciding)]
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))
    known = {
        query: _cost_of(task, dict(zip(names[2:], query[2:], strict=True)), *query[:2])
        for query in {*queries}
    }
    found = np.array([known[query] for query in queries]).reshape(len(queries), len(COST_NAMES))
    return dict(zip(COST_NAMES, found.T, strict=True))


def _cost_of(
    task: Task, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
) -> tuple[float, ...]:
    cost = charge(task, configuration, rounds, client_sample_rate)
    work = work_of(task, configuration, rounds, client_sample_rate)
    # A round of asynchronous training is an aggregation, of as many jobs as it has reports.
    jobs = work.rounds * (work.reports or work.sampled_clients)
    epochs = work.num_parameters * work.local_epochs * jobs
    knows_energy = task.system.knows_energy and not work.reports
    energy_j = task.system.energy_j(work) if knows_energy else math.nan
    return cost.time_s, cost.upload_bytes, cost.download_bytes, epochs, energy_j


class Prices:
    """`charge` for one task, which remembers: many trials cost the same."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._names = decisive_names(task)
        self._known: dict[tuple[object, ...], Cost] = {}

    def charge(
        self, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
    ) -> Cost:
        """Return what some rounds of a course cost."""
        key = (rounds, client_sample_rate, *[configuration.get(name) for name in self._names])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_PRICES:
                self._known.clear()
            found = charge(self._task, configuration, rounds, client_sample_rate)
            self._known[key] = found
        return found


def owed(asked: _Rounds, paid: _Rounds) -> tuple[_Rounds, _Rounds]:
    """Return the rounds to pay now and those that are then paid for (Swersky et al., 2014).

    Training that was paid for once is not paid again: the *most* rounds of a configuration count,
    not the last ones, so 100, 200, 56 and 500 rounds cost 100, 100, 0 and 300.
    """
    most = max(asked, paid) if isinstance(asked, int) else np.maximum(asked, paid)
    return most - paid, most


class Ledger:
    """What N environments pay for the queries of a step.

    Each configuration at each client sample rate is an account of its own.
    """

    def __init__(self, setup: TrialSetup, number: int) -> None:
        """Open the accounts of N environments.

        Args:
            setup: names the task and whether training can be resumed.
            number: N.
        """
        self._prices = Prices(setup.task)
        self._paid: list[dict[tuple[object, ...], int]] | None = None
        if setup.freeze_thaw:
            self._paid = [{} for _ in range(number)]

    def restart(self, where: Sequence[int] | Indices) -> None:
        """Forget what some environments paid."""
        if self._paid is not None:
            for index in where:
                self._paid[index].clear()

    def pay(self, where: Indices, queries: Sequence[CheckedQuery]) -> list[Cost]:
        """Charge one query to each of some environments."""
        costs = []
        for index, (configuration, fidelity) in zip(where, queries, strict=True):
            rounds = fidelity.round
            if self._paid is not None:
                account = self._paid[index]
                key = (*configuration.values(), fidelity.client_sample_rate)
                rounds, account[key] = owed(rounds, account.get(key, 0))
            costs.append(self._prices.charge(configuration, rounds, fidelity.client_sample_rate))
        return costs


class GridLedger:
    """The same for the cells of a grid, as arrays.

    With freeze-thaw it takes 4 N bytes for every configuration and client sample rate.
    """

    def __init__(self, setup: TrialSetup, number: int) -> None:
        """Open the accounts of N environments whose search space is a grid."""
        self._setup, self._number = setup, number
        space = setup.search_space
        cells = np.unravel_index(np.arange(space.grid_size), space.grid_shape)
        account = [name for name in space.names if name != "round"]
        self._rounds_of = _grid_of(setup, "round").astype(np.int32)[_flat(space, cells, ["round"])]
        self._account_of = _flat(space, cells, account)
        deciding = (*decisive_names(setup.task), "client_sample_rate")
        self._cost_of = _flat(space, cells, deciding)
        self._times = _times_s(setup, deciding, self._rounds_of)
        self._accounts: NDArray[np.int32] | None = None
        if setup.freeze_thaw:
            self._accounts = np.zeros((number, int(self._account_of.max()) + 1), dtype=np.int32)

    def __getstate__(self) -> tuple[TrialSetup, int, NDArray[np.int32] | None]:
        """Leave out what is quick to compute."""
        return self._setup, self._number, self._accounts

    def __setstate__(self, state: tuple[TrialSetup, int, NDArray[np.int32] | None]) -> None:
        """Compute it again."""
        setup, number, accounts = state
        GridLedger.__init__(self, setup, number)
        self._accounts = accounts

    def restart(self, where: Indices) -> None:
        """Forget what some environments paid."""
        if self._accounts is not None:
            self._accounts[where] = 0

    def pay(self, cells: Indices) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Charge one cell per environment; return (N,) simulated seconds and (N,) rounds."""
        rounds = self._rounds_of.take(cells)
        if self._accounts is not None:
            mine = np.arange(len(cells)), self._account_of[cells]
            rounds, self._accounts[mine] = owed(rounds, self._accounts[mine])
        return self._times[self._cost_of.take(cells), rounds], rounds


def _times_s(
    setup: TrialSetup, deciding: Sequence[str], rounds_of: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return (deciding grid points, rounds) simulated seconds, for every number of rounds."""
    most = int(rounds_of.max())
    asked = range(most + 1) if setup.freeze_thaw else np.unique(rounds_of).tolist()
    space = setup.search_space
    kept = SearchSpace(tuple(d for d in space.dimensions if d.name in deciding))
    times = np.full((kept.grid_size, most + 1), np.nan)
    for row, index in enumerate(np.ndindex(kept.grid_shape)):
        point = {d.name: d.grid[i] for d, i in zip(kept.dimensions, index, strict=True)}
        configuration = {**setup.fixed, **point}
        rate = float(configuration["client_sample_rate"])
        for rounds in asked:
            times[row, rounds] = charge(setup.task, configuration, rounds, rate).time_s
    return times


def _flat(space: SearchSpace, cells: Sequence[Indices], names: Sequence[str]) -> Indices:
    """Return the position of each cell among the grid points of some dimensions alone."""
    axes = [axis for axis, name in enumerate(space.names) if name in names]
    if not axes:
        return np.zeros(space.grid_size, dtype=np.intp)
    shape = [space.grid_shape[axis] for axis in axes]
    return np.ravel_multi_index(tuple(cells[axis] for axis in axes), shape)


def _grid_of(setup: TrialSetup, name: str) -> NDArray[Any]:
    """Return the grid points of a dimension, or the one value that is fixed."""
    space = setup.search_space
    return np.array(space[name].grid if name in space.names else [setup.fixed[name]])
