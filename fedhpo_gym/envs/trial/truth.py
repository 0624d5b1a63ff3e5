"""The truth of a trial environment: optimum and regret from stored numbers, hidden from agents.

`TrialEnv.truth` and `TrialEnv.full_truth` call `truth_of`; regret is measured with its result. On a
table or pool, all cells are evaluated, so that the optimum is exact. A surrogate has a continuous
space: its grid and random draws are evaluated, and a local search continues from the best of them.
Searches take seconds, so that results are cached in memory and on disk under everything that they
depend on.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Floats, Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial.ledger import spending
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup
from fedhpo_gym.envs.truth import SearchResult, Truth
from fedhpo_gym.evaluation.multi_objective import Constraints
from fedhpo_gym.evaluation.records import ENTRIES, METRICS
from fedhpo_gym.objectives import REGISTERED, values_of
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.remembered import is_truth, key_of, recall, results_stem

NUMBERS_AT_ONCE = 1 << 19
"""Metrics that are evaluated together, so that they stay in the processor's cache."""
MAX_KNOWN = 16
"""Truths in memory, about 1 MB each for a table; enough for the instances of an environment."""

_known: "OrderedDict[tuple[Hashable, ...], Truth]" = OrderedDict()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TrialTruth(Truth):
    """The truth of a table, a pool or a surrogate."""

    _setup: TrialSetup

    @cached_property
    def _stored(self) -> dict[str, Any] | None:
        if self.key is None:
            return None
        backend = self._setup.backend
        is_valid = partial(is_truth, width=len(self.objectives))
        stem = results_stem(backend.card, backend.name)
        return recall(stem, self.key, self.to_store, is_valid)

    def to_store(self) -> dict[str, Any]:
        has_losses = self.exact and self._has_one_fidelity
        losses = {"losses": self._losses_of_rows()} if has_losses else {}
        return super().to_store() | losses

    def _losses_of_rows(self) -> dict[str, float]:
        columns = self._queries.columns(np.arange(len(self.values)))
        return dict(zip(self._names_of(columns), self.values[:, 0].tolist(), strict=True))

    def _names_of(self, columns: Columns) -> list[str]:
        """Return short digests of configurations, the keys of stored losses."""
        rows = zip(*(columns[name].tolist() for name in self.search_space.names), strict=True)
        return [str(key_of(row))[:16] for row in rows]

    def _stored_losses(self, configurations: Sequence[Mapping[str, Value]]) -> Floats | None:
        """Return (n, 1) stored values of the first objective; None unless all are stored."""
        losses = {} if self._stored is None else self._stored.get("losses", {})
        if not losses or self._setup.limits:
            return None
        names = self._names_of(self.search_space.columns_of(configurations))
        return np.array([[losses[n]] for n in names]) if losses.keys() >= {*names} else None

    @property
    def fidelity(self) -> dict[str, Value]:
        return dict(self._setup.fixed)

    @property
    def _has_one_fidelity(self) -> bool:
        return {*self._setup.fixed} >= {"round", "client_sample_rate"}

    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """Return the (n, objectives) values of configurations at the only fidelity."""
        if not self._has_one_fidelity:
            raise InvalidArgumentError(
                "`values_at` needs the truth of one fidelity; use `env.unwrapped.full_truth`"
            )
        columns = self.search_space.columns_of(configurations)
        return values_of_queries(self._setup, self._setup.filled(columns, len(configurations)))

    @property
    def search_space(self) -> SearchSpace:
        """Dimensions of an action of `regret_of`."""
        return self._setup.search_space

    def regret_of(self, actions: NDArray[np.floating]) -> Floats:
        """Return the regret of (n, dimensions) actions; infinite where constraints are violated."""
        return self._regret(values_of_queries(self._setup, self._setup.columns(actions)))

    def _query_of(self, row: int) -> CheckedQuery:
        columns = self._queries.columns(np.array([row]))
        return self._setup.query({name: column.tolist()[0] for name, column in columns.items()})

    def violations_of(self, values: Floats) -> Floats:
        return self._setup.violations(values)

    def under(self, constraints: Constraints) -> "Truth":
        """Return the truth of the same queries under other constraints."""
        return replace(self, _setup=replace(self._setup, constraints=constraints), key=None)


def truth_of(setup: TrialSetup) -> Truth:
    """Return the truth of a setup; the latest `MAX_KNOWN` are cached."""
    if setup.backend.name == "raw":
        raise InvalidArgumentError(
            "`truth` needs stored numbers, but backend='raw' trains; use 'tabular' or 'surrogate'"
        )
    task, exact = setup.task, setup.is_grid
    lattice = setup if exact else replace(setup, grid=True)
    key = (lattice.search_space, tuple(sorted(setup.fixed.items())), setup.objective_names)
    rules = (tuple(setup.limits.items()), setup.transform, setup.custom)
    # With the same lattice, a surrogate also evaluates points between, unless it is on a grid.
    only = ("grid",) if exact and not replace(setup, grid=False).is_grid else ()
    decisive = (*key, setup.backend.seeds, setup.backend.fingerprint, *rules, *only)
    registered = tuple(REGISTERED[name] for name in setup.objective_names if name in REGISTERED)
    memory_key = (task, *decisive, registered)
    if memory_key not in _known:
        result = SearchResult(partial(search, setup, lattice))
        # Functions of a user may change between processes, and the order of tags, a set, may too.
        lasting = (_rules(), replace(task, tags=frozenset()), *decisive)
        stored = None if setup.custom or registered else key_of(*lasting)
        _known[memory_key] = TrialTruth(
            objectives=setup.objectives, exact=exact, _setup=setup, _result=result, key=stored
        )
    while len(_known) > MAX_KNOWN:
        _known.popitem(last=False)
    return _known[memory_key]


def _rules() -> tuple[float, ...]:
    """Return the constants of a search; the first is a version, raised when its code changes."""
    numbers = (MAX_QUERIES, DRAWS, STARTS, FEWEST, MOVES, ROUNDS, MOST_METRICS, WIDEST, NARROWEST)
    return (1, *numbers)


def search(setup: TrialSetup, lattice: TrialSetup) -> tuple["Queries", Floats, int]:
    """Return all queries of a truth, their values, and the number of queries on the lattice."""
    queries = queries_of(lattice, setup)
    size = max(NUMBERS_AT_ONCE // (setup.backend.num_samples.size * len(METRICS)), 1)

    def ask(rows: Queries) -> Floats:
        portions = np.split(np.arange(len(rows)), range(size, len(rows), size))
        return np.concatenate(
            [values_of_queries(setup, rows.columns(indices)) for indices in portions]
        )

    values = ask(queries)
    if lattice is not setup:
        queries, values = local_search(setup, queries, values, ask)
    return queries, values, len(queries.cells)


def searched_together(setups: Sequence[TrialSetup]) -> list[Truth]:
    """Return the truths of setups that differ only in objectives after the first.

    The first objective decides which queries are evaluated, so that one search serves all.
    """
    names = tuple(
        dict.fromkeys(name for each_setup in setups for name in each_setup.objective_names)
    )
    combined = replace(setups[0], objective_names=names)
    lattice = combined if combined.is_grid else replace(combined, grid=True)
    result = SearchResult(partial(search, combined, lattice))

    def chosen(setup: TrialSetup) -> tuple[Queries, Floats, int]:
        queries, values, size = result.arrays
        return queries, values[:, [names.index(name) for name in setup.objective_names]], size

    return [
        replace(truth_of(each_setup), _result=SearchResult(partial(chosen, each_setup)))
        for each_setup in setups
    ]


def values_of_queries(setup: TrialSetup, columns: Columns) -> Floats:
    """Return the (n, objectives) values of queries."""
    reads = (objective.reads for objective in setup.objectives if objective.reads_clients)
    # Custom objectives may read any metric.
    needed = ENTRIES if setup.custom else frozenset().union(*reads)
    evaluations = setup.backend.look_up(columns, needed)
    return values_of(setup.objectives, evaluations, spending(setup.task, columns))


MAX_QUERIES, DRAWS = 100_000, 1 << 13
"""Largest number of queries on the grid of a surrogate, and of draws between its points."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries: `cells` of the lattice, then `drawn` columns of points between, if any."""

    lattice: TrialSetup
    cells: Integers
    drawn: Columns

    def __len__(self) -> int:
        return len(self.cells) + len(next(iter(self.drawn.values()), ()))

    def columns(self, rows: Integers) -> Columns:
        """Return some of the queries, in ascending order."""
        num_cells = len(self.cells)
        inside, between = rows[rows < num_cells], rows[rows >= num_cells] - num_cells
        selected = self.lattice.columns_at(self.cells[inside])
        if not len(between):
            return selected
        return {
            name: np.concatenate([v, self.drawn[name][between]]) for name, v in selected.items()
        }


def queries_of(lattice: TrialSetup, setup: TrialSetup) -> Queries:
    """Return the queries of a setup: the grid of `lattice`, and draws if the space has more."""
    size = lattice.num_cells
    cells = np.arange(size)
    if size > MAX_QUERIES and not isinstance(setup.backend, StoredBackend):
        cells = np.sort(stream(0, "truth_cells").choice(size, MAX_QUERIES, replace=False))
    if lattice is setup:
        return Queries(lattice, cells, {})
    random_columns = _drawn(setup)
    if len(cells) < size:  # at least all cells of full fidelity
        highest = _at_the_top(lattice)
        random_columns = {
            name: np.concatenate([v, highest[name]]) for name, v in random_columns.items()
        }
    return Queries(lattice, cells, random_columns)


def _at_the_top(lattice: TrialSetup) -> Columns:
    """Return the configurations of the grid at the highest fidelity, `MAX_QUERIES` at most."""
    top = replace(lattice.at_full_fidelity, grid=True)
    size = top.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES:
        cells = np.sort(stream(0, "truth_top").choice(size, MAX_QUERIES, replace=False))
    columns = top.columns_at(cells)
    # Fixed values stay: an environment at round 27 cannot evaluate the last round.
    return {**columns, **{name: np.full(len(cells), v) for name, v in lattice.fixed.items()}}


def _drawn(setup: TrialSetup) -> Columns:
    """Return `DRAWS` random configurations at the highest fidelity that is allowed."""
    space, rng = setup.search_space, stream(0, "truth_queries")
    columns = dict(setup.columns(rng.uniform(-1.0, 1.0, (DRAWS, len(space)))))
    for dimension in space.dimensions:
        if dimension.name in setup.backend.fidelity_space.names:
            columns[dimension.name] = np.full(DRAWS, dimension.high)
    return columns


STARTS, FEWEST, MOVES, ROUNDS = 64, 8, 16, 60
"""Starts of a search, at most and at least; queries per start in a round; rounds."""
MOST_METRICS = 1 << 28
"""Metrics of clients that a search evaluates: with thousands of clients it has fewer starts, since
a truth would take minutes otherwise."""
WIDEST, NARROWEST = 0.5, 1e-3
"""Standard deviation of moves in the first and in the last round."""


def local_search(
    setup: TrialSetup, queries: Queries, values: Floats, ask: Callable[[Queries], Floats]
) -> tuple[Queries, Floats]:
    """Search for the best value of the first objective from the best of B known queries.

    Each start evaluates `MOVES` queries around it and moves to the best. Half of them change one
    coordinate; the others change all, a quarter by the difference of two other points
    (differential evolution; Storn and Price, 1997).
    """
    rng, space = stream(0, "truth_climbing"), setup.search_space
    per_place = setup.backend.num_samples.size * len(METRICS) * MOVES * ROUNDS
    best = _best(setup, values)[: min(STARTS, max(FEWEST, MOST_METRICS // per_place))]
    columns = queries.columns(np.sort(best))
    places = np.column_stack([d.encode_many(columns[d.name]) for d in space.dimensions])
    best_values = values[np.sort(best)]
    nothing = replace(queries, cells=queries.cells[:0])
    for scale in np.geomspace(WIDEST, NARROWEST, ROUNDS):
        candidates = _moved(places, scale, rng)
        answers = ask(replace(nothing, drawn=setup.columns(candidates.reshape(-1, len(space)))))
        answers = np.concatenate(
            [best_values[:, None], answers.reshape(*candidates.shape[:2], -1)], axis=1
        )
        candidates = np.concatenate([places[:, None], candidates], axis=1)
        winners = np.array([_best(setup, rows)[0] for rows in answers])
        each = np.arange(len(places))
        places, best_values = candidates[each, winners], answers[each, winners]
    ends = setup.columns(places)
    all_drawn = {name: np.concatenate([queries.drawn[name], ends[name]]) for name in ends}
    return replace(queries, drawn=all_drawn), np.concatenate([values, best_values])


def _best(setup: TrialSetup, values: Floats) -> Integers:
    """Return the rows of (B, objectives) values from best to worst; ties keep their order."""
    errors = setup.objectives[0].unclipped_errors(values[:, 0])
    return np.lexsort((errors, setup.violations(values)))


def _moved(places: Floats, scale: float, rng: np.random.Generator) -> Floats:
    """Return (P, MOVES, n) points around (P, n) places."""
    num_places, size = places.shape
    steps = rng.normal(0.0, scale, (num_places, MOVES, size))
    half = MOVES // 2
    single_axis = rng.integers(size, size=(num_places, half, 1)) == np.arange(size)
    steps[:, :half] *= single_axis
    pairs = places[rng.integers(num_places, size=(2, num_places, half // 2))]
    steps[:, half : half + half // 2] += 0.7 * (pairs[0] - pairs[1])
    return np.clip(places[:, None] + steps, -1.0, 1.0)
