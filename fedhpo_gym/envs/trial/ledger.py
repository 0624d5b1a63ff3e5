"""The costs of trials: simulated time and bytes, freeze-thaw, and privacy.

`TrialProcess` charges each trial here, and truths use `spending` for cost objectives. Costs follow
from the task's system model and do not depend on results. With freeze-thaw, a `Ledger` records the
rounds that were paid for each course, so that a longer trial costs only the difference. A
`TuningLedger` adds up the privacy of all trials of an episode.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym import objectives
from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.core.arrays import Indices
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Cost, Evaluations
from fedhpo_gym.space import Value
from fedhpo_gym.space.per_client import base_name
from fedhpo_gym.tasks import Task, decisive_names, work_of
from fedhpo_gym.tasks.privacy import DELTA, privacy_spent, renyi_spent
from fedhpo_gym.tasks.work import EPOCHS

MAX_PRICES = 4096


def charge(
    task: Task, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
) -> Cost:
    """Return the cost of some rounds of a course under the task's system model."""
    return task.system.cost(work_of(task, configuration, rounds, client_sample_rate))


def times_s(task: Task, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the (B,) simulated seconds of (B,) columns, with the same bits as `charge`."""
    rounds, rates = columns["round"], columns["client_sample_rate"]
    names = decisive_names(task)
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))
    if not names:
        queries = [()] * len(rounds)
    index_of = {query: index for index, query in enumerate(dict.fromkeys(queries))}
    works = [work_of(task, dict(zip(names, query, strict=True)), 1, 1.0) for query in index_of]
    which = np.array([index_of[query] for query in queries], dtype=np.intp)
    return task.system.times_s(works, which, rounds, rates)


def spending(task: Task, columns: Mapping[str, NDArray[Any]]) -> objectives.Spending:
    """Return the spending of B queries, without freeze-thaw."""
    return objectives.Spending(privacy_spent(task, columns), lambda: _costs(task, columns))


def constant_costs(setup: TrialSetup) -> tuple[str, ...]:
    """Return the cost objectives that are equal at the centre and all ends of the space."""
    middle = np.zeros(setup.action_space.shape, dtype=np.float32)
    ends = np.concatenate([np.diag(middle + end) for end in (-1.0, 1.0)]).astype(np.float32)
    columns = setup.columns(np.stack([middle, *ends]))
    num_actions, seeds = len(ends) + 1, np.array(setup.backend.seeds[:1])
    nothing = Evaluations(
        np.zeros((num_actions, 1, 1, len(SPLITS), len(METRICS)), dtype=np.float32),
        np.ones((1, 1, len(SPLITS)), dtype=np.int64),
        np.ones((num_actions, 1), dtype=np.int64),
        np.zeros((num_actions, 1), dtype=np.bool_),
        seeds,
        columns,
    )
    spent = spending(setup.task, columns)
    values = {
        objective.name: objective.compute(nothing, spent)
        for objective in setup.objectives
        if not objective.reads_clients and objective not in setup.custom
    }
    return tuple(name for name, column in values.items() if (column == column[0]).all())


def _costs(task: Task, columns: Mapping[str, NDArray[Any]]) -> objectives.Costs:
    """Return (B,) costs for each of `COST_NAMES`; equal queries are computed once."""
    deciding = {*decisive_names(task), *(d for d in columns if base_name(d) == EPOCHS)}
    names = ["round", "client_sample_rate", *sorted(deciding)]
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))
    costs_of = {
        query: _cost_of(task, dict(zip(names[2:], query[2:], strict=True)), *query[:2])
        for query in {*queries}
    }
    costs = np.array([costs_of[query] for query in queries]).reshape(
        len(queries), len(objectives.COST_NAMES)
    )
    return dict(zip(objectives.COST_NAMES, costs.T, strict=True))


def _cost_of(
    task: Task, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
) -> tuple[float, ...]:
    work = work_of(task, configuration, rounds, client_sample_rate)
    cost = task.system.cost(work)
    # A round of asynchronous training is an aggregation, of as many jobs as it has reports.
    jobs = work.rounds * (work.reports or work.sampled_clients)
    epochs = work.num_parameters * work.local_epochs * jobs
    knows_energy = task.system.knows_energy and not work.reports
    energy_j = task.system.energy_j(work) if knows_energy else math.nan
    return cost.time_s, cost.upload_bytes, cost.download_bytes, epochs, energy_j


class Prices:
    """`charge` for one task with a cache, because many trials cost the same."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._names = decisive_names(task)
        self._known: dict[tuple[object, ...], Cost] = {}

    def charge(
        self, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
    ) -> Cost:
        key = (rounds, client_sample_rate, *[configuration.get(name) for name in self._names])
        cost = self._known.get(key)
        if cost is None:
            if len(self._known) >= MAX_PRICES:
                self._known.clear()
            cost = charge(self._task, configuration, rounds, client_sample_rate)
            self._known[key] = cost
        return cost


class Ledger:
    """The paid rounds of N environments with freeze-thaw (Swersky et al., 2014).

    The most rounds of a course count: 100, 200, 56 and 500 rounds cost 100, 100, 0 and 300. Rounds
    are an array (N, courses), which grows with the highest course.
    """

    def __init__(self, num_envs: int) -> None:
        self._paid = np.zeros((num_envs, 0), dtype=np.int32)

    def restart(self, where: Indices) -> None:
        self._paid[where] = 0

    def pay(self, where: Indices, courses: Indices, rounds: Indices) -> Indices:
        """Pay for one query of each of B environments; return the (B,) rounds to be trained."""
        num_courses = self._paid.shape[1]
        if (more := int(courses.max()) + 1 - num_courses) > 0:
            self._paid = np.pad(self._paid, ((0, 0), (0, max(more, num_courses))))
        paid = self._paid[where, courses]
        self._paid[where, courses] = np.maximum(paid, rounds)
        return np.asarray(np.maximum(rounds - paid, 0))


class TuningLedger:
    """The total privacy spent by the trials of an episode, for each of N episodes.

    Repeated trials count again; with freeze-thaw, only newly trained rounds count. A trial counts
    when it begins.
    """

    def __init__(self, num_envs: int) -> None:
        self._sum = np.zeros((num_envs, len(objectives.SEARCH_ORDERS)))
        self._worst = np.zeros((num_envs, len(objectives.SEARCH_ORDERS)))
        self._trials = np.zeros(num_envs, dtype=np.int64)
        self._ahead = np.zeros(num_envs, dtype=np.int64)
        self.vectors: NDArray[np.float64] = np.zeros((num_envs, len(objectives.PRIVACY_NAMES)))

    def restart(self, where: Indices) -> None:
        self._trials[where] = self._ahead[where] = 0
        self._sum[where] = self._worst[where] = self.vectors[where] = 0.0

    def begin(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        """Count a trial of an episode that ends later (`end`)."""
        self._add(index, task, query, rounds)
        self._ahead[index] += 1

    def end(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        """Count a trial with some newly trained rounds, unless `begin` has counted it."""
        if self._ahead[index]:
            self._ahead[index] -= 1
        else:
            self._add(index, task, query, rounds)

    def _add(self, index: int, task: Task, query: CheckedQuery, rounds: int) -> None:
        self._trials[index] += 1
        configuration, fidelity = query
        rate = fidelity.client_sample_rate
        full_divergences = renyi_spent(task, configuration, fidelity.round, rate)
        self._worst[index] = np.maximum(self._worst[index], full_divergences)
        self._sum[index] += renyi_spent(task, configuration, rounds, rate)
        self.vectors[index] = objectives.ledger_of(self._sum[index].tolist(), DELTA).vector()

    def info(self, index: int) -> dict[str, Any]:
        """Return the privacy spent, and the epsilon of the best of a random number of trials."""
        spent = dict(zip(objectives.PRIVACY_NAMES, self.vectors[index].tolist(), strict=True))
        trials = max(int(self._trials[index]), 1)
        selected = objectives.selection_epsilon(self._worst[index], trials, DELTA)
        return {**spent, "selection_epsilon": min(selected, objectives.CAP)}
