"""Evaluates the queries of a step: one call of the backend for all environments.

`TrialProcess` passes (N, n) actions to a `TrialSource`, which returns a handle of each query and a
structured array of results (`Scorer.result_type`). A result holds what does not depend on earlier
trials; noise is part of it. On a grid or a pool, an `Evaluator` scores every cell once, and a step
is then one `take` of observations and results by cell. The grids of the last setups are shared by
all environments of the process.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.seeding import streams
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.ledger import Ledger, Prices, spending, times_s
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup
from fedhpo_gym.envs.vector import ObservationLayout
from fedhpo_gym.evaluation.noise import DEFAULT_EVALUATIONS, NOISE_STREAM
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, Spent, values_of

Results = NDArray[np.void]
"""Structured arrays of `Scorer.result_type`."""


def take_results(results: Results, indices: Integers) -> Results:
    """Return some results; numpy copies opaque rows several times faster than rows of fields."""
    return without_fields(results).take(indices).view(results.dtype)


def without_fields(results: Results) -> Results:
    """Return a view of results without fields."""
    return results.view(np.dtype((np.void, results.dtype.itemsize)))


@dataclass(frozen=True, eq=False)
class EvaluatedTrials:
    """What B evaluations bring."""

    observations: Singles  # (B, size)
    results: Results  # (B,)


class Scorer:
    """Computes observations and results of evaluations for one setup.

    Attributes:
        result_type: fields of one result. With M objectives, K metrics and S seeds:

            - `time_s`, `rounds`: what the trial is charged.
            - `error`, `shown_error`: error of the first objective, and the same clipped as the
              observation shows it.
            - `violation`: total violation of the constraints.
            - `scores` (M,): the reward vector before it is rounded to float32.
            - `values` (M,): of the objectives, as reported under noise.
            - `noise_free` (M,): the same without noise; equal to `values` where there is none.
            - `test` (K,): test metrics, NaN where the backend has none.
            - `diverged`: whether training diverged under any seed.
            - `best_round` (S,): round of the best model under each seed.
    """

    def __init__(self, setup: TrialSetup, layout: ObservationLayout) -> None:
        self._setup = setup
        self._layout = layout
        self._low, self._high = np.zeros((2, layout.size))
        for name, box in setup.observation_space.items():
            assert isinstance(box, gym.spaces.Box)  # noqa: S101 - our own invariant
            columns = layout.columns[name]
            self._low[columns], self._high[columns] = box.low, box.high
        per_objective = (float, (len(setup.objectives),))
        self.result_type = np.dtype(
            [
                ("time_s", float),
                ("rounds", np.int64),
                ("error", float),
                ("shown_error", float),
                ("violation", float),
                ("scores", *per_objective),
                ("values", *per_objective),
                ("noise_free", *per_objective),
                ("test", float, (len(setup.task.metric_names),)),
                ("best_round", np.int64, (len(setup.backend.seeds),)),
                ("diverged", np.bool_),
            ],
            align=True,
        )

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """What results depend on besides the evaluation: equal rules give equal results."""
        limits = tuple(self._setup.limits.items())
        return self._setup.objectives, tuple(self._layout.columns), limits, self.result_type

    def score(
        self,
        evaluations: Evaluations,
        spent: Spent,
        times_s: Floats,
        rngs: Sequence[np.random.Generator] | None = None,
        noise_free: Floats | None = None,
    ) -> EvaluatedTrials:
        """Score B evaluations, bit for bit as each alone.

        Args:
            evaluations: what the backend answered.
            spent: privacy and costs of the trials.
            times_s: (B,) simulated seconds of the trials.
            rngs: (B,) generators of the noise; no noise by default.
            noise_free: (B, objectives) values without noise, where they are already computed.
        """
        setup, objectives = self._setup, self._setup.objectives
        if noise_free is None:
            noise_free = values_of(objectives, evaluations, spent)
        if rngs is None or setup.noise is None:
            values = noise_free
            entries = observation.measured_entries(setup.task, evaluations, spent.privacy)
        else:
            values, entries = noisy_values(setup, evaluations, noise_free, spent, rngs)
        rows = np.zeros((len(values), self._layout.size))  # (B, size)
        self._layout.fill(rows, entries)
        # Losses have no bound, and rounding to float32 may step over one.
        np.minimum(np.maximum(rows, self._low, out=rows), self._high, out=rows)
        errors = np.empty_like(values)  # (B, objectives)
        for column, objective in enumerate(objectives):
            errors[:, column] = objective.errors(values[:, column])
        results = np.zeros(len(values), self.result_type)
        results["time_s"], results["rounds"] = times_s, evaluations.fidelity["round"]
        results["error"] = objectives[0].unclipped_errors(values[:, 0])
        results["shown_error"] = errors[:, 0]
        results["violation"] = setup.violations(values)
        # An environment returns float32, and a scalarisation computes with what it gets.
        results["scores"] = -errors.astype(np.float32)
        results["values"], results["noise_free"] = values, noise_free
        for column, name in enumerate(setup.task.metric_names):
            is_missing = f"test_{name}" in setup.backend.lacks
            results["test"][:, column] = np.nan if is_missing else evaluations.mean("test", name)
        results["diverged"] = evaluations.has_diverged
        results["best_round"] = evaluations.best_round
        return EvaluatedTrials(rows.astype(np.float32), results)


CHUNK = 8192
"""Cells that are scored together: their arrays take a few times 10 MB."""
PATIENCE = 128
"""Cells that are scored one by one before all are: they cost as much as all cells together."""
MAX_GRIDS = 4
"""Grids whose scores are kept: for example the three seeds of a table, and their mean."""
MAX_QUERIES = 4096
"""Queries that are kept: a search visits few cells, and its incumbent again and again."""

_scored_grids: OrderedDict[tuple[Hashable, ...], EvaluatedTrials] = OrderedDict()
Generators = Sequence[np.random.Generator]


class Evaluator:
    """Scores the queries of one setup, every cell of a stored grid once for all environments.

    Attributes:
        has_cells: whether queries are (B,) cells of a grid or a pool; otherwise (B, n) actions.
        cells: the scores of all cells; None until they are computed.
    """

    def __init__(self, setup: TrialSetup, scorer: Scorer) -> None:
        self.setup, self.scorer = setup, scorer
        self.prices = Prices(setup.task)
        backend = setup.backend
        is_stored = isinstance(backend, StoredBackend) and setup.is_grid
        self.has_cells = is_stored and not setup.custom
        self._num_queries = 0
        self.cells: EvaluatedTrials | None = None
        dimensions = (*backend.space.dimensions, *backend.fidelity_space.dimensions)
        answered = {dimension.name: dimension for dimension in dimensions}
        for dimension in setup.search_space.dimensions if is_stored else ():
            for value in dimension.values or ():
                answered[dimension.name].validate(value)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the scores of cells, which are quick to compute again."""
        return {**self.__dict__, "cells": None, "_num_queries": 0}

    def columns(self, queries: NDArray[Any]) -> Columns:
        """Return the columns of (B,) cells or (B, n) actions."""
        return self.setup.columns_at(queries) if self.has_cells else self.setup.columns(queries)

    def evaluate(self, queries: NDArray[Any], rngs: Generators | None = None) -> EvaluatedTrials:
        """Return observations and results of (B,) queries; the caller may write into them."""
        cells = self._all_cells(len(queries)) if self.has_cells else None
        if cells is None:
            return self._score(self.columns(queries), rngs)
        results = take_results(cells.results, queries)
        if rngs is None:
            return EvaluatedTrials(cells.observations.take(queries, axis=0), results)
        return self._score(self.columns(queries), rngs, results)

    def _score(
        self, columns: Columns, rngs: Generators | None = None, results: Results | None = None
    ) -> EvaluatedTrials:
        """Ask the backend; `results` are those of the cells, from which prices are taken."""
        task = self.setup.task
        seconds = times_s(task, columns) if results is None else results["time_s"]
        noise_free = None if results is None else results["noise_free"]
        evaluations = self.setup.backend.look_up(columns)
        return self.scorer.score(evaluations, spending(task, columns), seconds, rngs, noise_free)

    def _all_cells(self, count: int) -> EvaluatedTrials | None:
        """Return the scores of all cells, or None while it is cheaper to score a few."""
        if self.cells is None:
            if not self._num_queries:
                self.cells = _scored_grids.get(self._key)
            self._num_queries += count
            if self.cells is None and self._num_queries > PATIENCE:
                self.cells = _scored_grids.get(self._key) or self._score_cells()
        return self.cells

    @property
    def _key(self) -> tuple[Hashable, ...]:
        setup, backend = self.setup, self.setup.backend
        queries = (setup.task, setup.search_space, tuple(sorted(setup.fixed.items())))
        return (*queries, self.scorer.rule, backend.seeds, backend.fingerprint)

    def _score_cells(self) -> EvaluatedTrials:
        size = self.setup.num_cells
        chunks = [
            self._score(self.columns(np.arange(start, min(start + CHUNK, size))))
            for start in range(0, size, CHUNK)
        ]
        cells = EvaluatedTrials(
            np.concatenate([chunk.observations for chunk in chunks]),
            np.concatenate([chunk.results for chunk in chunks]),
        )
        _scored_grids[self._key] = cells
        while len(_scored_grids) > MAX_GRIDS:
            _scored_grids.popitem(last=False)
        return cells


class TrialSource:
    """Evaluates one query of each of N environments.

    A query is known by its handle: the position of a cell, or the bytes of an action.

    Attributes:
        instance: (N,) index of the instance of each episode.
    """

    def __init__(
        self,
        setup: TrialSetup,
        layout: ObservationLayout,
        num_envs: int,
        draws: "TrialStreams | None" = None,
    ) -> None:
        self.instance = np.zeros(num_envs, dtype=np.intp)
        self._evaluators = [
            Evaluator(instance_setup, Scorer(instance_setup, layout))
            for instance_setup in setup.parts
        ]
        self._setup, self._draws = setup.parts[0], draws
        self.result_type = self._evaluators[0].scorer.result_type
        self._ledger = Ledger(num_envs) if setup.freeze_thaw else None
        self._course_ids: list[dict[Hashable, int]] = [{} for _ in range(num_envs)]
        self._has_cells = self._evaluators[0].has_cells
        self._is_plain = len(self._evaluators) == 1 and self._has_cells
        self._is_plain &= draws is None and self._ledger is None
        # Handles of cells differ between instances, because each may be another pool.
        sizes = [
            evaluator.setup.num_cells if self._has_cells else 0 for evaluator in self._evaluators
        ]
        self._first_cells = np.cumsum([0, *sizes[:-1]])  # (instances,)
        self._queries: dict[bytes, CheckedQuery] = {}

    @property
    def handle_type(self) -> np.dtype[Any]:
        if self._has_cells:
            return np.dtype(np.intp)
        return np.dtype((np.void, 8 * len(self._setup.search_space)))

    def answer(
        self, actions: NDArray[np.floating], active: Bools, observations: Singles
    ) -> tuple[NDArray[Any], Results]:
        """Return the (N,) handles and results of (N, n) actions.

        Observations are written into `observations` (N, size). Those of inactive environments, and
        their results, may be anything.
        """
        if self._has_cells:
            handles = queries = self._cells_of(actions)
            if len(self._evaluators) > 1:
                handles = queries + self._first_cells[self.instance]
        else:
            queries = np.array(actions, dtype=np.float64)
            handles = queries.view(self.handle_type)[:, 0]
        cells = self._evaluators[0].cells if self._is_plain else None
        if cells is not None:  # one look-up, for inactive environments, too
            cells.observations.take(handles, axis=0, out=observations, mode="clip")
            return handles, take_results(cells.results, handles)
        groups = self._group_by_instance(active)
        if len(groups) == 1 and len(groups[0][1]) == len(actions):
            trials = self._evaluate(*groups[0], handles, queries)
            observations[:] = trials.observations
            return handles, trials.results
        results = np.zeros(len(actions), self.result_type)
        for evaluator, where in groups:
            trials = self._evaluate(evaluator, where, handles[where], queries[where])
            observations[where], results[where] = trials.observations, trials.results
        return handles, results

    def _cells_of(self, actions: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the (N,) cells of actions, each among the cells of its instance."""
        if len(self._evaluators) == 1:
            return self._setup.cells_of(actions)
        cells = np.zeros(len(actions), dtype=np.intp)
        for index in np.unique(self.instance).tolist():
            (where,) = np.nonzero(self.instance == index)
            cells[where] = self._evaluators[index].setup.cells_of(actions[where])
        return cells

    def _evaluate(
        self, evaluator: Evaluator, where: Integers, handles: NDArray[Any], queries: NDArray[Any]
    ) -> EvaluatedTrials:
        """Evaluate the queries of the environments `where`, all of one instance, and charge them.

        Args:
            evaluator: that of the instance.
            where: (B,) indices of environments.
            handles: (B,) of their queries.
            queries: (B,) cells or (B, n) actions.
        """
        if self._draws is None and self._ledger is None:
            return evaluator.evaluate(queries)
        keys = self._keys(handles)
        trials = evaluator.evaluate(queries, self._draws.of(where, keys) if self._draws else None)
        if self._ledger is not None:
            results = trials.results
            rounds = results["rounds"].astype(np.intp)
            courses = self._courses(evaluator, where, queries, keys)
            results["rounds"] = owed = self._ledger.pay(where, courses, rounds)
            for row in (owed < rounds).nonzero()[0].tolist():
                configuration, fidelity = self.query(handles[row])
                rate = fidelity.client_sample_rate
                cost = evaluator.prices.charge(configuration, int(owed[row]), rate)
                results["time_s"][row] = cost.time_s
        return trials

    def _keys(self, handles: NDArray[Any]) -> list[Any]:
        """Return keys of handles that are equal for equal queries, where that matters."""
        if self._has_cells or self._ledger is None:
            return list(handles.tolist())
        queries = map(self.query, handles)
        return [((*c.values(), f.client_sample_rate), f.round) for c, f in queries]

    def _courses(
        self, evaluator: Evaluator, where: Integers, queries: NDArray[Any], keys: list[Any]
    ) -> Integers:
        """Return the (B,) numbers of the training runs of queries: queries without their rounds."""
        if self._has_cells:
            return np.asarray(evaluator.setup.courses_of(queries))
        ids = [self._course_ids[index] for index in where.tolist()]
        pairs = zip(ids, keys, strict=True)
        return np.array(
            [course_ids.setdefault(course, len(course_ids)) for course_ids, (course, _) in pairs]
        )

    def _group_by_instance(self, active: Bools) -> list[tuple[Evaluator, Integers]]:
        """Return the evaluator of each instance, with the active environments that need it."""
        (where,) = active.nonzero()
        if len(self._evaluators) == 1:
            return [(self._evaluators[0], where)] if where.size else []
        instances = self.instance[where]
        present = np.unique(instances).tolist()
        return [(self._evaluators[index], where[instances == index]) for index in present]

    def restart(self, where: Integers) -> None:
        if self._ledger is not None:
            self._ledger.restart(where)
            for index in where.tolist():
                self._course_ids[index] = {}

    def query(self, handle: Any) -> CheckedQuery:
        """Return the query of a handle; the caller may write into it."""
        key = handle.tobytes()
        if key not in self._queries:
            if len(self._queries) >= MAX_QUERIES:
                self._queries.clear()
            self._queries[key] = self._decode(handle)
        configuration, fidelity = self._queries[key]
        return {**configuration}, fidelity

    def _decode(self, handle: Any) -> CheckedQuery:
        if not self._has_cells:
            return self._setup.decode(np.frombuffer(handle.tobytes(), dtype=np.float64))
        index = int(handle)
        instance = int(np.searchsorted(self._first_cells, index, "right")) - 1
        cell = index - int(self._first_cells[instance])
        return self._evaluators[instance].setup.query_at(cell)


class TrialStreams:
    """Provides a random stream per trial, which the episode's key and the trial's index decide.

    Asking a query again that was paid for gives its first stream: an agent could otherwise repeat
    it until the noise is favourable.
    """

    def __init__(self, trials: Integers, *, freeze_thaw: bool) -> None:
        self._trials, self._freeze_thaw = trials, freeze_thaw
        self._keys = np.zeros(len(trials), dtype=np.int64)
        self._first_trials: list[dict[Hashable, int]] = [{} for _ in trials]

    def restart(self, where: Integers | slice, keys: Integers) -> None:
        self._keys[where] = keys
        for index in np.arange(len(self._first_trials))[where].tolist():
            self._first_trials[index] = {}

    def of(self, where: Integers, queries: Sequence[Hashable]) -> list[np.random.Generator]:
        """Return the (n,) streams of the next trials of some episodes."""
        trials = self._trials[where].tolist()
        if self._freeze_thaw:
            each = zip(where.tolist(), queries, trials, strict=True)
            trials = [
                self._first_trials[index].setdefault(query, trial) for index, query, trial in each
            ]
        return list(
            streams(NOISE_STREAM, list(zip(self._keys[where].tolist(), trials, strict=True)))
        )


def noisy_values(
    setup: TrialSetup,
    evaluations: Evaluations,
    noise_free: Floats,
    spent: Spent,
    rngs: Sequence[np.random.Generator],
) -> tuple[Floats, dict[str, Floats]]:
    """Return noisy (B, objectives) values, and the observation entries that follow from them.

    Objectives that read no client, such as costs, stay exact.
    """
    noise = setup.noise
    assert noise is not None  # noqa: S101 - the caller has checked
    bounds = np.array([metric.bounds for metric in setup.task.metrics])
    reported = noise.apply(evaluations, rngs, bounds)
    values = np.where(setup.reads_clients, values_of(setup.objectives, reported, spent), noise_free)
    if noise.private and setup.reads_clients.any():
        columns = np.flatnonzero(setup.reads_clients)
        objectives = [setup.objectives[i] for i in columns]
        num_evaluations = noise.evaluations or DEFAULT_EVALUATIONS
        noisy = noise.private_values(
            objectives, values[:, columns], reported, num_evaluations, rngs
        )
        # A run that diverged keeps the worst values.
        diverged = reported.has_diverged[:, None]
        values[:, columns] = np.where(diverged, values[:, columns], noisy)
    entries = observation.measured_entries(setup.task, reported, spent.privacy)
    if noise.withholds:
        entries.update(_entries_from_objectives(setup, values))
    return values, entries


def _entries_from_objectives(setup: TrialSetup, values: Floats) -> dict[str, Floats]:
    """Return observation entries that show the objectives only; others are as before a trial."""
    task, names = setup.task, setup.objective_names
    entries = {
        metric.name: np.full((len(values), len(task.seen_splits)), metric.worst)
        for metric in task.metrics
    }
    entries["fairness"] = np.zeros((len(values), len(FAIRNESS_NAMES)))
    for metric in task.metrics:
        for column, split in enumerate(task.seen_splits):
            if (name := f"{split}_{metric.objective}") in names:
                value = values[:, names.index(name)]
                entries[metric.name][:, column] = 1.0 - value if metric.complement else value
    for column, measure in enumerate(FAIRNESS_NAMES):
        if (name := f"fairness_{measure}") in names:
            entries["fairness"][:, column] = values[:, names.index(name)]
    return entries
