"""What can be reached in a trial environment: known of stored numbers, and shown to no agent."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Bools, Floats, Integers
from fedhpo_gym.core.checks import as_integer, coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial.ledger import spending
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup
from fedhpo_gym.evaluation.multi_objective import (
    Constraints,
    growing_volumes,
    hypervolume,
    non_dominated,
)
from fedhpo_gym.evaluation.records import ENTRIES, METRICS, Fidelity
from fedhpo_gym.objectives import REGISTERED, Objective, values_of
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.remembered import is_truth, key_of, recall, results_stem

NUMBERS_AT_ONCE = 1 << 19
"""Metrics that are looked at together, so that they stay in the processor's cache."""
BEYOND = 0.1
"""How far beyond the nadir point hypervolumes end at least, in units of the front's extent."""
MAX_KNOWN = 16
"""Truths that are kept, 1 MB each for a table: those of the instances of an environment."""

_known: "OrderedDict[tuple[Hashable, ...], Truth]" = OrderedDict()


class SearchResult:
    """All queries of a truth and their values, which are computed when they are first read.

    Attributes:
        arrays: `Queries`, their (B, objectives) values, and how many are the lattice's, which come
            first.
    """

    def __init__(self, compute: Callable[[], tuple[Any, Floats, int]]) -> None:
        self._compute = compute

    @cached_property
    def arrays(self) -> tuple[Any, Floats, int]:
        return self._compute()


@dataclass(frozen=True, eq=False, repr=False)
class Truth:
    """The values of all objectives, of everything on a stated lattice.

    For a table or a pool, the lattice is all that actions can ask for, and the truth is exact. A
    surrogate is asked on the grid of the task's tables at the rounds that they hold, or on
    `MAX_QUERIES` drawn points of it, then at `DRAWS` configurations between the grid's points, at
    the highest fidelity, and then where `local_search` goes from the best of them, for the first
    objective. All that takes seconds to minutes. What regret and hypervolumes need of it is
    therefore stored with the numbers for the default arguments, and in the user's cache for others
    (`fedhpo_gym.stored.remembered`): `best`, `best_query`, `typical`, `ideal`, `nadir`,
    `reference`, `hypervolume` and all regrets come from there. `values`, and what speaks of its
    rows, are computed when they are used.

    Constraints bind all that is said here: optimum, front, ideal, nadir and reference are of the
    queries that keep them, and where none does, of those of the least total violation.

    Attributes:
        objectives: the objectives, in the order of the environment's.
        exact: whether actions can ask for nothing else.
        key: what it is stored under; None where it is computed at once.
    """

    objectives: tuple[Objective, ...]
    exact: bool
    _setup: TrialSetup
    _result: SearchResult
    key: str | None = None

    def __repr__(self) -> str:
        """Say what it is of: the arrays and the setup fill pages."""
        return f"Truth of {', '.join(one.name for one in self.objectives)}, exact={self.exact}"

    @property
    def values(self) -> Floats:
        """(B, objectives) values, in the units of the objectives; those of the lattice first."""
        return self._result.arrays[1]

    @property
    def on_lattice(self) -> int:
        """How many are the lattice's: what a random trial brings is read off them."""
        return self._result.arrays[2]

    @property
    def _asked(self) -> Any:
        return self._result.arrays[0]

    @cached_property
    def _stored(self) -> dict[str, Any] | None:
        if self.key is None:
            return None
        backend = self._setup.backend
        is_valid = partial(is_truth, width=len(self.objectives))
        return recall(results_stem(backend.card, backend.name), self.key, self.to_store, is_valid)

    def to_store(self) -> dict[str, Any]:
        """Compute what is stored of it: the optimum, medians and front of the feasible queries."""
        configuration, fidelity = self.query(self.optimum)
        return {
            "best": self.values[self.optimum].tolist(),
            "query": [configuration, dict(vars(fidelity))],
            "medians": self._medians_of_rows().tolist(),
            "front": np.unique(self.errors[self.front()], axis=0).tolist(),
            **({"losses": self._losses_of_rows()} if self.exact and self._has_one_fidelity else {}),
        }

    def _losses_of_rows(self) -> dict[str, float]:
        columns = self._asked.columns(np.arange(len(self.values)))
        return dict(zip(self._names_of(columns), self.values[:, 0].tolist(), strict=True))

    def _names_of(self, columns: Columns) -> list[str]:
        """Return short digests of configurations; values come back from JSON to the bit."""
        rows = zip(*(columns[name].tolist() for name in self.search_space.names), strict=True)
        return [str(key_of(row))[:16] for row in rows]

    def _stored_losses(self, configurations: Sequence[Mapping[str, Value]]) -> Floats | None:
        """Return (n, 1) stored values of the first objective; None where not all are stored."""
        losses = {} if self._stored is None else self._stored.get("losses", {})
        if not losses or self._setup.limits:
            return None
        names = self._names_of(self.search_space.columns_of(configurations))
        return np.array([[losses[n]] for n in names]) if losses.keys() >= {*names} else None

    @property
    def best(self) -> Floats:
        """(objectives,) values of the optimum."""
        if self._stored is None:
            return np.asarray(self.values[self.optimum])
        return np.array(self._stored["best"])

    @property
    def best_query(self) -> CheckedQuery:
        """The configuration and the fidelity of the optimum."""
        if self._stored is None:
            return self.query(self.optimum)
        configuration, fidelity = self._stored["query"]
        return configuration, Fidelity(**fidelity)

    @property
    def _least(self) -> float:
        """The error of the optimum in the first objective."""
        return float(self.objectives[0].unclipped_errors(self.best[:1])[0])

    def _front_errors(self, names: Sequence[str] | None) -> Floats:
        """Return the (k, names) errors of the front of some objectives."""
        columns = self._columns(names)
        if self._stored is None:
            return self.errors[self.front(names)][:, columns]
        # The values of a front of some objectives are among those of the front of all.
        errors = np.array(self._stored["front"])[:, columns]
        return np.asarray(errors[non_dominated(errors)])

    @property
    def fidelity(self) -> dict[str, Value]:
        return dict(self._setup.fixed)

    @property
    def _has_one_fidelity(self) -> bool:
        return {*self._setup.fixed} >= {"round", "client_sample_rate"}

    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """Return the (n, objectives) values of configurations, at the truth's one fidelity."""
        if not self._has_one_fidelity:
            raise InvalidArgumentError(
                "`values_at` needs the truth of one fidelity; use `env.unwrapped.full_truth`"
            )
        columns = self.search_space.columns_of(configurations)
        return values_of_queries(self._setup, self._setup.filled(columns, len(configurations)))

    @property
    def search_space(self) -> SearchSpace:
        """What an action of `regret_of` is decoded to."""
        return self._setup.search_space

    def regret_of(self, actions: NDArray[np.floating]) -> Floats:
        """Return the regret of (n, dimensions) actions; infinite where constraints are not kept."""
        return self._regret(values_of_queries(self._setup, self._setup.columns(actions)))

    def _regret(self, values: Floats) -> Floats:
        return np.where(self._setup.violations(values) == 0, self.regret(values[:, 0]), np.inf)

    @property
    def scale(self) -> float:
        """How far the reference of relative regret lies from the optimum; 1 where it does not."""
        return float(self._medians[0] - self._least) or 1.0

    @cached_property
    def _medians(self) -> Floats:
        """(objectives,) median errors of the feasible rows: of the lattice's, if it has any."""
        return (
            self._medians_of_rows() if self._stored is None else np.array(self._stored["medians"])
        )

    def _medians_of_rows(self) -> Floats:
        of_lattice = np.flatnonzero(self.feasible[: self.on_lattice])
        rows = of_lattice if len(of_lattice) else self.feasible
        return np.asarray(np.median(self.errors[rows], axis=0))

    def query(self, index: int) -> CheckedQuery:
        """Return the configuration and the fidelity of a row of `values`; -1 is the last."""
        row, size = as_integer(index), len(self.values)
        if row is None or not -size <= row < size:
            raise InvalidArgumentError(
                f"`index` must be a whole number from {-size} to {size - 1}, got "
                f"{short_repr(index)}"
            )
        return self._query_of(row % size)

    def _query_of(self, row: int) -> CheckedQuery:
        columns = self._asked.columns(np.array([row]))
        return self._setup.query({name: column.tolist()[0] for name, column in columns.items()})

    @cached_property
    def errors(self) -> Floats:
        """(B, objectives) values signed so that lower is better."""
        columns = zip(self.objectives, self.values.T, strict=True)
        return np.column_stack([o.unclipped_errors(column) for o, column in columns])

    @property
    def scores(self) -> Floats:
        """(B, objectives) scores as an environment returns them: float32 numbers."""
        columns = zip(self.objectives, self.values.T, strict=True)
        errors = np.column_stack([o.errors(column) for o, column in columns])
        return -errors.astype(np.float32).astype(np.float64)

    @cached_property
    def violations(self) -> Floats:
        """(B,) total violations of the constraints; 0 where a query keeps them."""
        return self._setup.violations(self.values)

    @cached_property
    def feasible(self) -> Bools:
        """(B,) whether a query keeps the constraints; where none does, whether it is nearest."""
        return np.asarray(self.violations == self.violations.min())

    @cached_property
    def optimum(self) -> int:
        """The feasible row with the best value of the first objective; the first of equal ones."""
        return int(np.argmin(np.where(self.feasible, self.errors[:, 0], np.inf)))

    def under(self, constraints: Constraints) -> "Truth":
        """Return the truth of the same queries under other constraints."""
        return replace(self, _setup=replace(self._setup, constraints=constraints), key=None)

    def regret_at(self, configurations: Sequence[Mapping[str, Value]]) -> tuple[Floats, Floats]:
        """Return regret and relative regret of configurations, (n,); inf and 1 where infeasible."""
        if (values := self._stored_losses(configurations)) is None:
            values = self.values_at(configurations)
        relative = self.relative_regret(values[:, 0])
        return self._regret(values), np.where(self._setup.violations(values) == 0, relative, 1.0)

    def regret(self, values: ArrayLike) -> Floats:
        """Return how far values of the first objective are from the best one; 0 is the optimum."""
        errors = self.objectives[0].unclipped_errors(_numbers("values", values))
        return np.asarray(errors - self._least)

    def relative_regret(self, values: ArrayLike) -> Floats:
        """Return regret in units of what one random trial is expected to have, at most 1.

        That is the regret of the median feasible row of the lattice; where all are equal, it is 0.
        """
        regret = self.regret(values)
        if self._medians[0] <= self._least:
            return np.where(regret > 0, 1.0, 0.0)
        return np.clip(regret / self.scale, 0.0, 1.0)

    @property
    def typical(self) -> float:
        """The reference of relative regret, a value of the first objective (`scale`)."""
        return float(self._medians[0]) * (1.0 if self.objectives[0].minimize else -1.0)

    def front(self, names: Sequence[str] | None = None) -> Integers:
        """Return the feasible rows that no other dominates, in their order.

        Args:
            names: objectives that count, here and in the methods below; all by default.

        Raises:
            UnknownNameError: the environment has no such objective.
        """
        rows = np.flatnonzero(self.feasible)
        return rows[non_dominated(self.errors[rows][:, self._columns(names)])]

    def ideal(
        self, names: Sequence[str] | None = None, constraints: Constraints | None = None
    ) -> Floats:
        """Return the best value of each of `names`, under other constraints if given."""
        if constraints is not None:
            return self.under(constraints).ideal(names)
        return self._as_values(self._front_errors(names).min(axis=0), names)

    def nadir(self, names: Sequence[str] | None = None) -> Floats:
        """Return the worst value of each of `names` on their front."""
        return self._as_values(self._front_errors(names).max(axis=0), names)

    def reference(self, names: Sequence[str] | None = None) -> Floats:
        """Return the point, values of `names`, at which volumes end that are compared.

        In each objective the worse of the median of the lattice's feasible rows and the nadir point
        moved by `BEYOND` of its distance from the ideal one (Ishibuchi et al., 2018); where an
        objective has no worst value, as a loss, the median.
        """
        columns = self._columns(names)
        front = self._front_errors(names)
        low, high = front.min(axis=0), front.max(axis=0)
        middle = self._medians[columns]
        endless = np.array([one.open_ended for one in self.objectives])[columns]
        beyond = np.maximum(high + BEYOND * (high - low), middle)
        corner = np.where(endless & (middle > low), middle, beyond)
        return self._as_values(corner, names)

    def hypervolume(
        self,
        reference: ArrayLike,
        names: Sequence[str] | None = None,
        values: ArrayLike | None = None,
    ) -> float:
        """Return the volume between a front, or (n, objectives) values, and a reference point."""
        if values is None:
            points = self._front_errors(names)
        else:
            points = self._as_values(_numbers("values", values), names)
        corner = self._as_values(_numbers("reference", reference), names)
        return hypervolume(np.unique(points, axis=0), corner)

    def hypervolume_regret(
        self,
        values: ArrayLike,
        names: Sequence[str] | None = None,
        observed: ArrayLike | None = None,
    ) -> Floats:
        """Return the (T,) shares of the true hypervolume missing after each of some trials.

        Args:
            values: (T, objectives) of the trials in their order; NaN is worse than any number.
            names: objectives that count; all by default.
            observed: (T, objectives) noisy values, by which an agent picks the trials that it
                presents; `values` by default.
        """
        found = self._ranked("values", values, names)
        seen = found if observed is None else self._ranked("observed", observed, names)
        if seen.shape != found.shape:
            raise InvalidArgumentError(
                f"`observed` must have the shape of `values`, {found.shape}, got {seen.shape}"
            )
        front = self._front_errors(names)
        ideal, corner = front.min(axis=0), self._as_values(self.reference(names), names)
        alive = corner > ideal
        if not alive.any():
            return np.minimum.accumulate((found > ideal).any(axis=-1)).astype(np.float64)
        ideal, width = ideal[alive], (corner - ideal)[alive]
        ones = np.ones(len(width))
        whole = hypervolume(np.unique((front[:, alive] - ideal) / width, axis=0), ones)
        points = (found[:, alive] - ideal) / width
        return 1.0 - growing_volumes(points, ones, seen[:, alive]) / whole

    def _columns(self, names: Sequence[str] | None) -> list[int]:
        known = [objective.name for objective in self.objectives]
        coerce("names", names, Sequence[str] | None)
        for name in names or ():
            require_known("objective", name, known)
        return [known.index(name) for name in (known if names is None else names)]

    def _ranked(self, name: str, values: ArrayLike, names: Sequence[str] | None) -> Floats:
        """Return errors for values, NaN as infinity."""
        errors = self._as_values(_numbers(name, values), names)
        return np.where(np.isnan(errors), np.inf, errors)

    def _as_values(self, errors: Floats, names: Sequence[str] | None) -> Floats:
        """Return values for errors, or errors for values: the sign is the same."""
        chosen = [self.objectives[column] for column in self._columns(names)]
        signs = np.array([1.0 if objective.minimize else -1.0 for objective in chosen])
        if errors.shape[-1:] != signs.shape:
            raise InvalidArgumentError(
                f"values must have {len(signs)} columns, one per objective, got the shape "
                f"{errors.shape}"
            )
        return np.asarray(errors * signs)


def _numbers(name: str, values: ArrayLike) -> Floats:
    return coerce_reals(name, values).astype(np.float64)


def truth_of(setup: TrialSetup) -> Truth:
    """Return the truth of a setup; those asked for last are kept."""
    if setup.backend.name == "raw":
        raise InvalidArgumentError(
            "`truth` is known of stored numbers only, and backend='raw' trains; use 'tabular' or "
            "'surrogate'"
        )
    task, exact = setup.task, setup.is_grid
    lattice = setup if exact else replace(setup, grid=True)
    key = (lattice.search_space, tuple(sorted(setup.fixed.items())), setup.objective_names)
    rules = (tuple(setup.limits.items()), setup.transform, setup.own)
    # A surrogate answers between the points of the same lattice, too.
    only = ("grid",) if exact and not replace(setup, grid=False).is_grid else ()
    decisive = (*key, setup.backend.seeds, setup.backend.fingerprint, *rules, *only)
    registered = tuple(REGISTERED[name] for name in setup.objective_names if name in REGISTERED)
    known = (task, *decisive, registered)
    if known not in _known:
        result = SearchResult(partial(search, setup, lattice))
        # Functions of a user may be others tomorrow, and tags, a set, have no lasting order.
        lasting = (_rules(), replace(task, tags=frozenset()), *decisive)
        stored = None if setup.own or registered else key_of(*lasting)
        _known[known] = Truth(setup.objectives, exact, setup, result, stored)
    while len(_known) > MAX_KNOWN:
        _known.popitem(last=False)
    return _known[known]


def _rules() -> tuple[float, ...]:
    """Return what a search depends on besides the setup; the first is raised when its code does."""
    numbers = (MAX_QUERIES, DRAWS, STARTS, FEWEST, MOVES, ROUNDS, MOST_METRICS, WIDEST, NARROWEST)
    return (1, *numbers)


def search(setup: TrialSetup, lattice: TrialSetup) -> tuple["Queries", Floats, int]:
    """Return all queries of a truth, their values, and how many are the lattice's."""
    asked = queries_of(lattice, setup)
    size = max(NUMBERS_AT_ONCE // (setup.backend.num_samples.size * len(METRICS)), 1)

    def ask(rows: Queries) -> Floats:
        parts = np.split(np.arange(len(rows)), range(size, len(rows), size))
        return np.concatenate([values_of_queries(setup, rows.columns(part)) for part in parts])

    values = ask(asked)
    if lattice is not setup:
        asked, values = local_search(setup, asked, values, ask)
    return asked, values, len(asked.cells)


def searched_together(setups: Sequence[TrialSetup]) -> list[Truth]:
    """Return the truths of setups that differ in their objectives alone, but for the first one.

    The first objective decides which queries are asked, so one search serves all.
    """
    names = tuple(dict.fromkeys(name for one in setups for name in one.objective_names))
    every = replace(setups[0], objective_names=names)
    lattice = every if every.is_grid else replace(every, grid=True)
    result = SearchResult(partial(search, every, lattice))

    def chosen(setup: TrialSetup) -> tuple[Queries, Floats, int]:
        queries, values, size = result.arrays
        return queries, values[:, [names.index(name) for name in setup.objective_names]], size

    return [replace(truth_of(one), _result=SearchResult(partial(chosen, one))) for one in setups]


def values_of_queries(setup: TrialSetup, columns: Columns) -> Floats:
    """Return the (n, objectives) values of queries."""
    reads = (one.reads for one in setup.objectives if one.reads_clients)
    needed = ENTRIES if setup.own else frozenset().union(*reads)  # nobody has tried their laws
    evaluations = setup.backend.look_up(columns, needed)
    return values_of(setup.objectives, evaluations, spending(setup.task, columns))


MAX_QUERIES, DRAWS = 100_000, 1 << 13
"""Queries of a surrogate: most on the grid, and draws between its points at full fidelity."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries: `cells` of the flattened grid of `lattice`, then `drawn` columns between, if any."""

    lattice: TrialSetup
    cells: Integers
    drawn: Columns

    def __len__(self) -> int:
        return len(self.cells) + len(next(iter(self.drawn.values()), ()))

    def columns(self, rows: Integers) -> Columns:
        """Return some of the queries, in ascending order."""
        number = len(self.cells)
        inside, between = rows[rows < number], rows[rows >= number] - number
        found = self.lattice.columns_at(self.cells[inside])
        if not len(between):
            return found
        return {name: np.concatenate([v, self.drawn[name][between]]) for name, v in found.items()}


def queries_of(lattice: TrialSetup, setup: TrialSetup) -> Queries:
    """Return what a setup is asked: the grid of `lattice`, and draws where there is more."""
    size = lattice.num_cells
    cells = np.arange(size)
    if size > MAX_QUERIES and not isinstance(setup.backend, StoredBackend):
        cells = np.sort(stream(0, "truth_cells").choice(size, MAX_QUERIES, replace=False))
    if lattice is setup:
        return Queries(lattice, cells, {})
    drawn = _drawn(setup)
    if len(cells) < size:  # then all of full fidelity at least
        highest = _at_the_top(lattice)
        drawn = {name: np.concatenate([v, highest[name]]) for name, v in drawn.items()}
    return Queries(lattice, cells, drawn)


def _at_the_top(lattice: TrialSetup) -> Columns:
    """Return the configurations of the grid at the highest fidelity, `MAX_QUERIES` at most."""
    top = replace(lattice.at_full_fidelity, grid=True)
    size = top.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES:
        cells = np.sort(stream(0, "truth_top").choice(size, MAX_QUERIES, replace=False))
    columns = top.columns_at(cells)
    # What is fixed stays: an environment of round 27 cannot ask for the last one.
    return {**columns, **{name: np.full(len(cells), v) for name, v in lattice.fixed.items()}}


def _drawn(setup: TrialSetup) -> Columns:
    """Return `DRAWS` random configurations at the highest fidelity that may be asked for."""
    space, rng = setup.search_space, stream(0, "truth_queries")
    columns = dict(setup.columns(rng.uniform(-1.0, 1.0, (DRAWS, len(space)))))
    for dimension in space.dimensions:
        if dimension.name in setup.backend.fidelity_space.names:
            columns[dimension.name] = np.full(DRAWS, dimension.high)
    return columns


STARTS, FEWEST, MOVES, ROUNDS = 64, 8, 16, 60
"""Best known queries that a search starts from, how many at least; queries of each in a round."""
MOST_METRICS = 1 << 28
"""Metrics of clients that a search asks for: with thousands of clients it starts from fewer places,
or a truth takes minutes."""
WIDEST, NARROWEST = 0.5, 1e-3
"""Standard deviation of moves in the first and in the last round."""


def local_search(
    setup: TrialSetup, asked: Queries, values: Floats, ask: Callable[[Queries], Floats]
) -> tuple[Queries, Floats]:
    """Search for the best value of the first objective from the best of B known queries.

    Each place asks `MOVES` queries around itself: half move one coordinate, the others all, by
    what differs between two places (Storn and Price, 1997) or a little. It goes to the best.
    """
    rng, space = stream(0, "truth_climbing"), setup.search_space
    per_place = setup.backend.num_samples.size * len(METRICS) * MOVES * ROUNDS
    best = _best(setup, values)[: min(STARTS, max(FEWEST, MOST_METRICS // per_place))]
    columns = asked.columns(np.sort(best))
    places = np.column_stack([d.encode_many(columns[d.name]) for d in space.dimensions])
    found = values[np.sort(best)]
    nothing = replace(asked, cells=asked.cells[:0])
    for scale in np.geomspace(WIDEST, NARROWEST, ROUNDS):
        moved = _moved(places, scale, rng)
        answers = ask(replace(nothing, drawn=setup.columns(moved.reshape(-1, len(space)))))
        answers = np.concatenate([found[:, None], answers.reshape(*moved.shape[:2], -1)], axis=1)
        moved = np.concatenate([places[:, None], moved], axis=1)
        chosen = np.array([_best(setup, rows)[0] for rows in answers])
        each = np.arange(len(places))
        places, found = moved[each, chosen], answers[each, chosen]
    ends = setup.columns(places)
    drawn = {name: np.concatenate([asked.drawn[name], ends[name]]) for name in ends}
    return replace(asked, drawn=drawn), np.concatenate([values, found])


def _best(setup: TrialSetup, values: Floats) -> Integers:
    """Return the rows of (B, objectives) values, the best one first; of equals the first."""
    errors = setup.objectives[0].unclipped_errors(values[:, 0])
    return np.lexsort((errors, setup.violations(values)))


def _moved(places: Floats, scale: float, rng: np.random.Generator) -> Floats:
    """Return (P, MOVES, n) points around (P, n) places."""
    number, size = places.shape
    steps = rng.normal(0.0, scale, (number, MOVES, size))
    half = MOVES // 2
    one = rng.integers(size, size=(number, half, 1)) == np.arange(size)
    steps[:, :half] *= one
    pairs = places[rng.integers(number, size=(2, number, half // 2))]
    steps[:, half : half + half // 2] += 0.7 * (pairs[0] - pairs[1])
    return np.clip(places[:, None] + steps, -1.0, 1.0)
