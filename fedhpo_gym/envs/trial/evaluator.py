"""From queries to rows of numbers: a backend is asked all queries of a step together.

Rows are all that a step says and that does not depend on the past; noise is a part of them.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Bools, Floats, Indices, Integers, Singles
from fedhpo_gym.core.seeding import streams
from fedhpo_gym.envs.trial import observation
from fedhpo_gym.envs.trial.ledger import Ledger, Prices, spending, times_s
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup
from fedhpo_gym.envs.vector import Layout
from fedhpo_gym.evaluation.noise import DEFAULT_EVALUATIONS, NOISE_STREAM
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, Spent, values_of

TIME_S, ROUNDS, ERROR, SHOWN, VIOLATION, SCORES = range(6)
"""Columns of the numbers: simulated seconds and rounds, unclipped error of the first objective, the
same as an observation shows it, total violation of constraints; then scores, then values of the
objectives, under noise what these truly are, and what only `info` says."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """What B evaluations say: (B, size) observations, and (B, columns) numbers of `Scorer`."""

    seen: Singles
    numbers: Floats


class Scorer:
    """Computes the rows of evaluations; its attributes are slices of their columns.

    `truth` are values without noise, the same as `values` where there is none; `details` are what
    only `info` says: test metrics, NaN where the backend lacks them, whether any seed diverged, and
    each seed's best round.
    """

    def __init__(self, setup: TrialSetup, layout: Layout) -> None:
        self._setup = setup
        self._layout = layout
        self._low, self._high = np.zeros((2, layout.size))
        for name, box in setup.observation_space.items():
            assert isinstance(box, gym.spaces.Box)  # noqa: S101 - our own invariant
            columns = layout.columns[name]
            self._low[columns], self._high[columns] = box.low, box.high
        count = len(setup.objectives)
        self.scores = slice(SCORES, SCORES + count)
        self.values = slice(SCORES + count, SCORES + 2 * count)
        self.truth = self.values
        if setup.noise is not None:
            self.truth = slice(self.values.stop, self.values.stop + count)
        number = len(setup.task.metric_names) + 1 + len(setup.backend.seeds)
        self.width = self.truth.stop + number
        self.details = slice(self.truth.stop, self.width)

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """What rows depend on, besides the evaluation: equal rules give equal rows."""
        limits = tuple(self._setup.limits.items())
        return self._setup.objectives, tuple(self._layout.columns), limits

    def rows(
        self,
        evaluations: Evaluations,
        spent: Spent,
        times_s: Floats,
        rngs: Sequence[np.random.Generator] | None = None,
        truth: Floats | None = None,
    ) -> ScoredRows:
        """Return the rows of B evaluations, bit for bit those of each alone."""
        objectives = self._setup.objectives
        if truth is None:
            truth = values_of(objectives, evaluations, spent)
        if rngs is None or self._setup.noise is None:
            values = truth
            entries = observation.measure(self._setup.task, evaluations, spent.privacy)
        else:
            values, entries = noisy_values(self._setup, evaluations, truth, spent, rngs)
        shown = np.zeros((len(values), self._layout.size))
        self._layout.fill(shown, entries)
        # Losses have no bound, and rounding to float32 may step over one.
        np.minimum(np.maximum(shown, self._low, out=shown), self._high, out=shown)
        seen = shown.astype(np.float32)
        errors = np.empty_like(values)
        for column, objective in enumerate(objectives):
            errors[:, column] = objective.errors(values[:, column])
        numbers = np.zeros((len(values), self.width))
        numbers[:, TIME_S], numbers[:, ROUNDS] = times_s, evaluations.fidelity["round"]
        numbers[:, ERROR] = objectives[0].unclipped_errors(values[:, 0])
        numbers[:, SHOWN] = errors[:, 0]
        numbers[:, VIOLATION] = self._setup.violations(values)
        # What an environment returns is float32; a scalarisation computes with what it gets.
        numbers[:, self.scores] = -errors.astype(np.float32)
        numbers[:, self.values] = values
        numbers[:, self.truth] = truth
        details, names = numbers[:, self.details], self._setup.task.metric_names
        for column, name in enumerate(names):
            lacks = f"test_{name}" in self._setup.backend.lacks
            details[:, column] = np.nan if lacks else evaluations.mean("test", name)
        details[:, len(names)] = evaluations.has_diverged
        details[:, len(names) + 1 :] = evaluations.best_round
        return ScoredRows(seen, numbers)


CHUNK = 8192
"""Cells that are scored together: a few ten MB."""
PATIENCE = 128
"""Cells that are scored one by one before all are: so many cost as much as all cells do."""
MAX_KNOWN = 4
"""Grids whose rows are kept: the three seeds of a table, and their mean."""
MOST_QUERIES = 4096
"""Cells whose query is remembered: searches come back to few, and incumbents to themselves."""

_known: OrderedDict[tuple[Hashable, ...], ScoredRows] = OrderedDict()
Generators = Sequence[np.random.Generator]


class Evaluator:
    """Scores the queries of one setup, every cell of a stored grid once for all environments.

    Attributes:
        has_cells: whether queries are (B,) cells of a grid or a pool; else (B, n) actions.
    """

    def __init__(self, setup: TrialSetup, scorer: Scorer) -> None:
        self.setup, self.scorer = setup, scorer
        self.prices = Prices(setup.task)
        backend = setup.backend
        stored = isinstance(backend, StoredBackend) and setup.is_grid
        self.has_cells = stored and not setup.own
        self._asked = 0
        self.scored: ScoredRows | None = None
        dimensions = (*backend.space.dimensions, *backend.fidelity_space.dimensions)
        legal = {dimension.name: dimension for dimension in dimensions}
        for dimension in setup.search_space.dimensions if stored else ():
            for value in dimension.values or ():
                legal[dimension.name].validate(value)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows: they are quick to compute."""
        return {**self.__dict__, "scored": None, "_asked": 0}

    def columns(self, queries: NDArray[Any]) -> Columns:
        """Return the columns of (B,) cells or (B, n) actions."""
        return self.setup.columns_at(queries) if self.has_cells else self.setup.columns(queries)

    def rows(self, queries: NDArray[Any], rngs: Generators | None = None) -> ScoredRows:
        """Return the rows of (B,) queries, which the caller may write into."""
        known = self._all_rows(len(queries)) if self.has_cells else None
        if known is None:
            return self._score(self.columns(queries), rngs)
        numbers = known.numbers.take(queries, axis=0)
        if rngs is None:
            return ScoredRows(known.seen.take(queries, axis=0), numbers)
        return self._score(self.columns(queries), rngs, numbers)

    def _score(
        self, columns: Columns, rngs: Generators | None = None, numbers: Floats | None = None
    ) -> ScoredRows:
        task = self.setup.task
        known = times_s(task, columns) if numbers is None else numbers[:, TIME_S]
        truth = None if numbers is None else numbers[:, self.scorer.truth]
        evaluations = self.setup.backend.look_up(columns)
        return self.scorer.rows(evaluations, spending(task, columns), known, rngs, truth)

    def _all_rows(self, count: int) -> ScoredRows | None:
        """Return the rows of all cells, or None while it is cheaper to score some."""
        if self.scored is None:
            if not self._asked:
                self.scored = _known.get(self._key)
            self._asked += count
            if self.scored is None and self._asked > PATIENCE:
                self.scored = _known.get(self._key) or self._score_all()
        return self.scored

    @property
    def _key(self) -> tuple[Hashable, ...]:
        setup, backend = self.setup, self.setup.backend
        asked = (setup.task, setup.search_space, tuple(sorted(setup.fixed.items())))
        return (*asked, self.scorer.rule, self.scorer.width, backend.seeds, backend.fingerprint)

    def _score_all(self) -> ScoredRows:
        size = self.setup.num_cells
        chunks = [
            self._score(self.columns(np.arange(start, min(start + CHUNK, size))))
            for start in range(0, size, CHUNK)
        ]
        seen = np.concatenate([chunk.seen for chunk in chunks])
        rows = ScoredRows(seen, np.concatenate([chunk.numbers for chunk in chunks]))
        _known[self._key] = rows
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)
        return rows


class TrialSource:
    """Answers one query of each of N environments, by the handles of cells or bytes of actions.

    Attributes:
        instance: (N,) numbers of the instances that the episodes are of.
    """

    def __init__(
        self, setup: TrialSetup, layout: Layout, number: int, draws: "TrialStreams | None" = None
    ) -> None:
        self.instance = np.zeros(number, dtype=np.intp)
        self._parts = [Evaluator(part, Scorer(part, layout)) for part in setup.parts]
        self._setup, self._draws = setup.parts[0], draws
        self._width = self._parts[0].scorer.width
        self._ledger = Ledger(number) if setup.freeze_thaw else None
        self._courses_of: list[dict[Hashable, int]] = [{} for _ in range(number)]
        self._has_cells = self._parts[0].has_cells
        self._is_plain = len(self._parts) == 1 and self._has_cells
        self._is_plain &= draws is None and self._ledger is None
        # Handles of cells differ between instances, because each may be another pool.
        sizes = [part.setup.num_cells if self._has_cells else 0 for part in self._parts]
        self._first_cells = np.cumsum([0, *sizes[:-1]])
        self._queries: dict[int, CheckedQuery] = {}

    @property
    def handle_type(self) -> np.dtype[Any]:
        if self._has_cells:
            return np.dtype(np.intp)
        return np.dtype((np.void, 8 * len(self._setup.search_space)))

    def answer(
        self, actions: NDArray[np.floating], active: Bools, seen: Singles
    ) -> tuple[NDArray[Any], Floats]:
        """Return (N,) handles of queries and (N, columns) numbers; write into (N, size) `seen`."""
        if self._has_cells:
            handles = queries = self._cells_of(actions)
            if len(self._parts) > 1:
                handles = queries + self._first_cells[self.instance]
        else:
            queries = np.array(actions, dtype=np.float64)
            handles = queries.view(self.handle_type)[:, 0]
        scored = self._parts[0].scored if self._is_plain else None
        if scored is not None:  # one look-up, for those who do not ask, too
            scored.seen.take(handles, axis=0, out=seen, mode="clip")
            return handles, scored.numbers.take(handles, axis=0)
        present = self._asking(active)
        if len(present) == 1 and len(present[0][1]) == len(actions):
            rows = self._rows(*present[0], handles, queries)
            seen[:] = rows.seen
            return handles, rows.numbers
        numbers = np.zeros((len(actions), self._width))
        for part, where in present:
            rows = self._rows(part, where, handles[where], queries[where])
            seen[where], numbers[where] = rows.seen, rows.numbers
        return handles, numbers

    def _cells_of(self, actions: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the (N,) cells of actions, each among those of its own instance."""
        if len(self._parts) == 1:
            return self._setup.cells_of(actions)
        cells = np.zeros(len(actions), dtype=np.intp)
        for number in np.unique(self.instance).tolist():
            (where,) = np.nonzero(self.instance == number)
            cells[where] = self._parts[number].setup.cells_of(actions[where])
        return cells

    def _rows(
        self, part: Evaluator, where: Indices, handles: NDArray[Any], queries: NDArray[Any]
    ) -> ScoredRows:
        """Return the rows of what some environments ask of an instance, and charge them."""
        if self._draws is None and self._ledger is None:
            return part.rows(queries)
        keys = self._keys(handles)
        rows = part.rows(queries, self._draws.of(where, keys) if self._draws else None)
        if self._ledger is not None:
            asked = rows.numbers[:, ROUNDS].astype(np.intp)
            courses = self._courses(part, where, queries, keys)
            rows.numbers[:, ROUNDS] = owed = self._ledger.pay(where, courses, asked)
            for row in (owed < asked).nonzero()[0].tolist():
                configuration, fidelity = self.query(handles[row])
                rate = fidelity.client_sample_rate
                cost = part.prices.charge(configuration, int(owed[row]), rate)
                rows.numbers[row, TIME_S] = cost.time_s
        return rows

    def _keys(self, handles: NDArray[Any]) -> list[Any]:
        """Return keys that are equal for equal queries of some handles, where that matters."""
        if self._has_cells or self._ledger is None:
            return list(handles.tolist())
        queries = map(self.query, handles)
        return [((*one.values(), asked.client_sample_rate), asked.round) for one, asked in queries]

    def _courses(
        self, part: Evaluator, where: Indices, queries: NDArray[Any], keys: list[Any]
    ) -> Indices:
        """Return the (B,) numbers of what queries train: queries without their rounds."""
        if self._has_cells:
            return np.asarray(part.setup.courses_of(queries))
        known = [self._courses_of[index] for index in where.tolist()]
        pairs = zip(known, keys, strict=True)
        return np.array([own.setdefault(course, len(own)) for own, (course, _) in pairs])

    def _asking(self, active: Bools) -> list[tuple[Evaluator, Indices]]:
        """Return the instances that are asked, and the environments that do."""
        (where,) = active.nonzero()
        if len(self._parts) == 1:
            return [(self._parts[0], where)] if where.size else []
        instances = self.instance[where]
        present = np.unique(instances).tolist()
        return [(self._parts[number], where[instances == number]) for number in present]

    def restart(self, where: Indices) -> None:
        if self._ledger is not None:
            self._ledger.restart(where)
            for index in where.tolist():
                self._courses_of[index] = {}

    def query(self, handle: Any) -> CheckedQuery:
        """Return the query of a handle, which the caller may write into."""
        if not self._has_cells:
            return self._setup.decode(np.frombuffer(handle.tobytes(), dtype=np.float64))
        number = int(handle)
        if number not in self._queries:
            if len(self._queries) >= MOST_QUERIES:
                self._queries.clear()
            instance = int(np.searchsorted(self._first_cells, number, "right")) - 1
            cell = number - int(self._first_cells[instance])
            self._queries[number] = self._parts[instance].setup.query_at(cell)
        configuration, fidelity = self._queries[number]
        return {**configuration}, fidelity


class TrialStreams:
    """Hands out one stream per trial, decided by the episode's key and the trial's number.

    A query that was paid for has its first stream: an agent could else draw until it is lucky.
    """

    def __init__(self, trials: Integers, *, freeze_thaw: bool) -> None:
        self._trials, self._freeze_thaw = trials, freeze_thaw
        self._keys = np.zeros(len(trials), dtype=np.int64)
        self._asked: list[dict[Hashable, int]] = [{} for _ in trials]

    def restart(self, where: Indices | slice, keys: Integers) -> None:
        self._keys[where] = keys
        for index in np.arange(len(self._asked))[where].tolist():
            self._asked[index] = {}

    def of(self, where: Indices, queries: Sequence[Hashable]) -> list[np.random.Generator]:
        """Return the (n,) streams of the coming trials of some episodes."""
        numbers = self._trials[where].tolist()
        if self._freeze_thaw:
            each = zip(where.tolist(), queries, numbers, strict=True)
            numbers = [
                self._asked[index].setdefault(query, number) for index, query, number in each
            ]
        return list(
            streams(NOISE_STREAM, list(zip(self._keys[where].tolist(), numbers, strict=True)))
        )


def noisy_values(
    setup: TrialSetup,
    evaluations: Evaluations,
    truth: Floats,
    spent: Spent,
    rngs: Sequence[np.random.Generator],
) -> tuple[Floats, dict[str, Floats]]:
    """Return noisy (B, objectives) values, and the entries of observations that go with them.

    Objectives that read no client, such as costs, stay exact.
    """
    noise = setup.noise
    assert noise is not None  # noqa: S101 - the caller asked
    bounds = np.array([metric.bounds for metric in setup.task.metrics])
    heard = noise.apply(evaluations, rngs, bounds)
    values = np.where(setup.reads_clients, values_of(setup.objectives, heard, spent), truth)
    if noise.private and setup.reads_clients.any():
        told = np.flatnonzero(setup.reads_clients)
        objectives = [setup.objectives[i] for i in told]
        number = noise.evaluations or DEFAULT_EVALUATIONS
        noisy = noise.private_values(objectives, values[:, told], heard, number, rngs)
        # Those of courses that diverged stay the worst.
        values[:, told] = np.where(heard.has_diverged[:, None], values[:, told], noisy)
    entries = observation.measure(setup.task, heard, spent.privacy)
    if noise.withholds:
        entries.update(_told(setup, values))
    return values, entries


def _told(setup: TrialSetup, values: Floats) -> dict[str, Floats]:
    """Return entries of observations: told of objectives, all others as before a trial."""
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
