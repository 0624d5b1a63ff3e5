"""What can be reached in an episode of trials: optimum, regret, front and hypervolume.

`Truth` computes them from the values of all objectives of a set of queries. Subclasses say which
queries these are: `envs/trial/truth.py` of a table, a pool or a surrogate, `envs/meta/setup.py` of
one of many tasks. Reports and `RegretInfo` read it; no observation and no reward does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.core.arrays import Bools, Floats, Integers
from fedhpo_gym.core.checks import as_integer, coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.multi_objective import (
    Constraints,
    hypervolume,
    incumbent_volumes,
    non_dominated,
)
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace, Value

BEYOND = 0.1
"""How far beyond the nadir point hypervolumes end at least, in units of the front's extent."""


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Truth(ABC):
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
    _result: SearchResult
    key: str | None = None

    def __repr__(self) -> str:
        """Name the objectives: the arrays and the setup fill pages."""
        names = ", ".join(objective.name for objective in self.objectives)
        return f"Truth of {names}, exact={self.exact}"

    @property
    def values(self) -> Floats:
        """(B, objectives) values, in the units of the objectives; those of the lattice first."""
        return self._result.arrays[1]

    @property
    def on_lattice(self) -> int:
        """How many are the lattice's: what a random trial brings is read off them."""
        return self._result.arrays[2]

    @property
    def _queries(self) -> Any:
        return self._result.arrays[0]

    @property
    @abstractmethod
    def search_space(self) -> SearchSpace:
        """What an action of `regret_of` is decoded to."""

    @property
    @abstractmethod
    def fidelity(self) -> dict[str, Value]:
        """The fidelity of all rows, where there is one."""

    @abstractmethod
    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """Return the (n, objectives) values of configurations, at the truth's one fidelity."""

    @abstractmethod
    def regret_of(self, actions: NDArray[np.floating]) -> Floats:
        """Return the regret of (n, dimensions) actions; infinite where constraints are not kept."""

    @abstractmethod
    def under(self, constraints: Constraints) -> "Truth":
        """Return the truth of the same queries under other constraints."""

    @abstractmethod
    def _query_of(self, row: int) -> CheckedQuery:
        """Return the query of a row."""

    def violations_of(self, values: Floats) -> Floats:
        """Return the (n,) total violations of the constraints of (n, objectives) values."""
        return np.zeros(len(values))

    @cached_property
    def violations(self) -> Floats:
        """(B,) total violations of the constraints; 0 where a query keeps them."""
        return self.violations_of(self.values)

    def _regret(self, values: Floats) -> Floats:
        return np.where(self.violations_of(values) == 0, self.regret(values[:, 0]), np.inf)

    @cached_property
    def _stored(self) -> dict[str, Any] | None:
        """What was computed before; None where everything is computed at once."""
        return None

    def _stored_losses(self, configurations: Sequence[Mapping[str, Value]]) -> Floats | None:
        """Return (n, 1) stored values of the first objective; None where not all are stored."""
        del configurations
        return None

    def to_store(self) -> dict[str, Any]:
        """Compute what is stored of it: the optimum, medians and front of the feasible queries."""
        configuration, fidelity = self.query(self.optimum)
        return {
            "best": self.values[self.optimum].tolist(),
            "query": [configuration, dict(vars(fidelity))],
            "medians": self._medians_of_rows().tolist(),
            "front": np.unique(self.errors[self.front()], axis=0).tolist(),
        }

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
    def feasible(self) -> Bools:
        """(B,) whether a query keeps the constraints; where none does, whether it is nearest."""
        return np.asarray(self.violations == self.violations.min())

    @cached_property
    def optimum(self) -> int:
        """The feasible row with the best value of the first objective; the first of equal ones."""
        return int(np.argmin(np.where(self.feasible, self.errors[:, 0], np.inf)))

    def regret_at(self, configurations: Sequence[Mapping[str, Value]]) -> tuple[Floats, Floats]:
        """Return regret and relative regret of configurations, (n,); inf and 1 where infeasible."""
        if (values := self._stored_losses(configurations)) is None:
            values = self.values_at(configurations)
        relative = self.relative_regret(values[:, 0])
        return self._regret(values), np.where(self.violations_of(values) == 0, relative, 1.0)

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
        endless = np.array([objective.open_ended for objective in self.objectives])[columns]
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
        errors = self._ranked("values", values, names)
        reported_errors = errors if observed is None else self._ranked("observed", observed, names)
        if reported_errors.shape != errors.shape:
            raise InvalidArgumentError(
                f"`observed` must have the shape of `values`, {errors.shape}, got "
                f"{reported_errors.shape}"
            )
        front = self._front_errors(names)
        ideal, corner = front.min(axis=0), self._as_values(self.reference(names), names)
        varying = corner > ideal
        if not varying.any():
            return np.minimum.accumulate((errors > ideal).any(axis=-1)).astype(np.float64)
        ideal, width = ideal[varying], (corner - ideal)[varying]
        ones = np.ones(len(width))
        full_volume = hypervolume(np.unique((front[:, varying] - ideal) / width, axis=0), ones)
        points = (errors[:, varying] - ideal) / width
        return 1.0 - incumbent_volumes(points, ones, reported_errors[:, varying]) / full_volume

    def _columns(self, names: Sequence[str] | None) -> list[int]:
        objective_names = [objective.name for objective in self.objectives]
        coerce("names", names, Sequence[str] | None)
        for name in names or ():
            require_known("objective", name, objective_names)
        return [
            objective_names.index(name) for name in (objective_names if names is None else names)
        ]

    def _ranked(self, name: str, values: ArrayLike, names: Sequence[str] | None) -> Floats:
        """Return errors for values, NaN as infinity."""
        errors = self._as_values(_numbers(name, values), names)
        return np.where(np.isnan(errors), np.inf, errors)

    def _as_values(self, errors: Floats, names: Sequence[str] | None) -> Floats:
        """Return values for errors, or errors for values: the sign is the same."""
        objectives = [self.objectives[column] for column in self._columns(names)]
        signs = np.array([1.0 if objective.minimize else -1.0 for objective in objectives])
        if errors.shape[-1:] != signs.shape:
            raise InvalidArgumentError(
                f"values must have {len(signs)} columns, one per objective, got the shape "
                f"{errors.shape}"
            )
        return np.asarray(errors * signs)


def _numbers(name: str, values: ArrayLike) -> Floats:
    return coerce_reals(name, values).astype(np.float64)
