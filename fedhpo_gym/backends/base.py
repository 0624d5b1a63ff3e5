"""The interfaces of backends: `Backend` evaluates queries, `Courses` trains in steps.

Trial environments evaluate configurations through a `Backend`. Its `look_up` takes B queries as
columns, one array per dimension, because tables and surrogates are fast only on whole batches.
Round environments train N courses through a `Courses`, which can be stopped after any round, stored
in a snapshot and restored. An answer to a query must have the same bits in every batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    FIDELITIES,
    SPLITS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
    query_columns,
)
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.pool import PoolCells
from fedhpo_gym.stored.table import LACKS as LACKING
from fedhpo_gym.tasks import Task

Query = tuple[Mapping[str, object], Fidelity]
"""A configuration and the fidelity at which it is evaluated."""
LACKS: Mapping[str, tuple[str, ...]] = {
    "clients": ("fairness",),
    "samples": ("flops",),
    "privacy": ("epsilon", "delta"),
}
"""Parts that stored numbers may lack besides metrics -> words in names of objectives with them."""


def one_validates(num_samples: NDArray[np.int64]) -> bool:
    """Return whether only one client has validation samples, of (..., clients, splits) samples."""
    return bool((num_samples[..., SPLITS.index("val")] > 0).sum(axis=-1).max() < 2)


OF_CLIENTS: Final = ("fairness_std", "fairness_jain")
"""Objectives that compare clients; with one client they are constant."""
CheckedQuery = tuple[dict[str, Value], Fidelity]
"""A query whose values are legal and of built-in types."""


class Backend(ABC):
    """A source of numbers for one task, whose `look_up` evaluates columns of queries.

    Attributes:
        name: name in `gym.make(..., backend=name)`.
        task: the task.
        seeds: the seeds of an evaluation, in order.
        space: configurations that it can evaluate: a grid, or intervals.
        fidelity_space: fidelities at which it can evaluate them.
    """

    name: ClassVar[str]

    def __init__(
        self, task: Task, seed: int | None, space: SearchSpace, fidelity_space: SearchSpace
    ) -> None:
        self.task = task
        checked_seed = None if seed is None else as_integer(seed)
        if seed is not None and (checked_seed is None or checked_seed < 0):
            raise InvalidArgumentError(
                f"`seed` must be a non-negative integer or None, got {seed!r}"
            )
        self.seeds = task.seeds if checked_seed is None else (checked_seed,)
        self.space = space
        self.fidelity_space = fidelity_space

    @property
    def seed(self) -> int | None:
        """The only seed of its evaluations, or None if they hold all seeds of the task."""
        return None if self.seeds == self.task.seeds else self.seeds[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that open it again, the task and the seed, not its data."""
        return type(self), (self.task, self.seed)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of everything that its numbers depend on, for run records."""

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """(seeds, clients, splits) samples; an error if they are unknown before the first trial."""
        raise InvalidArgumentError(
            f"`backend` must have stored numbers, which contain the sample counts of clients, got "
            f"{self.name!r}"
        )

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the same numbers in older records."""
        return ()

    @property
    def card(self) -> Mapping[str, Any]:
        """The card of stored numbers; empty for backends that train."""
        return {}

    @property
    def lacks(self) -> Mapping[str, str]:
        """Missing parts of its numbers -> reasons: metrics (`test_f1`), or keys of `LACKS`."""
        reasons: Mapping[str, str] = self.card.get(LACKING, {})
        return reasons

    def why_refused(self, objective: str) -> str:
        """Return why it does not support an objective of the task; "" if it does."""
        entry = self.task.objectives.get(objective)
        if entry is None:
            return ""
        needed = [f"{split}_{metric}" for split, metric in sorted(entry.reads)]
        needed = needed if entry.reads_clients else []
        needed += [what for what, words in LACKS.items() if any(w in objective for w in words)]
        for name in needed:
            if name in self.lacks:
                return self.lacks[name]
        if objective in OF_CLIENTS:
            with suppress(
                InvalidArgumentError
            ):  # some backends have no sample counts before a trial
                if one_validates(self.num_samples):
                    return "one client alone is validated, so that it is constant"
        return ""

    def describe(self) -> dict[str, object]:
        """Return what `reset` reports besides name, fingerprint and seeds, as plain data."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what outlives an object, such as processes; the backend stays usable."""

    def evaluate(self, configuration: Mapping[str, object], fidelity: Fidelity) -> Evaluation:
        """Return f(configuration, fidelity) for every seed, client, split and metric.

        Raises:
            InvalidArgumentError: a value is missing, unknown or out of range.
            OffGridError: the backend has a grid only, and a value is not on it.
        """
        return self.evaluate_many([(configuration, fidelity)])[0]

    def evaluate_many(self, queries: Sequence[Query]) -> Evaluations:
        """Return the evaluations of queries, checked as in `evaluate`; training is batched."""
        checked: list[CheckedQuery] = []
        for configuration, fidelity in queries:
            legal = self.space.validate(configuration)
            values = {"round": fidelity.round, "client_sample_rate": fidelity.client_sample_rate}
            valid = self.check_fidelity(values)
            exact = Fidelity(int(valid["round"]), float(valid["client_sample_rate"]))
            checked.append((legal, exact))
        return self.look_up(query_columns(self.space, checked))

    @abstractmethod
    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        """Return the evaluations of B queries; each has the same bits in any batch.

        Args:
            columns: (B,) legal values of every dimension of `space` and `fidelity_space`, by name;
                the caller has checked them, and only cheap checks are repeated.
            reads: metrics of clients that are needed; others may be NaN.

        Raises:
            OffGridError: a value is not on the grid of a table.
        """

    def nearest(self, columns: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the nearest (B,) values that it can evaluate."""
        return columns

    def nearest_query(self, query: CheckedQuery) -> CheckedQuery:
        """Return the nearest query that it can evaluate, as `nearest` does for columns."""
        return query

    def cells(self, fixed: Mapping[str, Value]) -> PoolCells | None:
        """Return the configurations it has at fixed fidelities; None if it has all of `space`."""
        del fixed
        return None

    def queries(self, columns: Mapping[str, NDArray[Any]]) -> list[CheckedQuery]:
        """Return the queries of (B,) columns one by one, as backends that train need them."""
        fidelities = zip(*(columns[name].tolist() for name in FIDELITIES), strict=True)
        rows = zip(self.space.configurations_of(columns), fidelities, strict=True)
        return [(configuration, Fidelity(*fidelity)) for configuration, fidelity in rows]

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Return validated values of some fidelity dimensions."""
        space = self.fidelity_space
        return {name: space[name].validate(value, "fidelity") for name, value in values.items()}


class StoredBackend(Backend):
    """A backend whose numbers exist already, so that evaluating all of them at once is cheap."""


Configuration = Mapping[str, Value]

Metrics = NDArray[np.float32]
"""(..., clients, splits, metrics); the last two axes follow `SPLITS` and `METRICS`."""


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """Results of some rounds of N courses."""

    metrics: Metrics  # (N, clients, splits, metrics) after the last round, of the last finite model
    diverged: NDArray[np.bool_]  # (N,) whether a course has left the finite numbers, now or before
    feedback: ClientFeedback  # of these rounds
    # (N,) inner products of this move of the global model and the one before; None unless needed.
    move_product: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class CourseSnapshot:
    """State of a course after a round."""

    instance: int  # index of the instance that it trains on
    state: object  # needed to continue; opaque outside the class that made it
    move: object = None  # last move of the model, where moves are reported; opaque as well


class Courses(Protocol):
    """N federated courses of one task, each on an instance, that train the same rounds."""

    name: ClassVar[str] = (
        "raw"  # the backend that trains them, as in `gymnasium.make(..., backend=name)`
    )

    @property
    def fingerprint(self) -> str:
        """Digest of everything that numbers depend on, for run records."""
        return ""

    def describe(self) -> dict[str, object]:
        """Return what `reset` reports of the backend, as plain data."""
        return {}

    def close(self) -> None:
        """Release what outlives an object, such as processes; courses can continue after it."""

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """(N, clients, splits) samples of the instances of the courses."""

    @property
    def most_samples(self) -> NDArray[np.int64]:
        """(clients,) largest number of training samples of a client over all instances."""

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        """Put some courses at round 0 of other instances, or of the same ones."""

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        """Return (positions, clients, splits, metrics) of the untrained models of some courses."""

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        """Set the hyperparameters of all courses from here on."""

    def sampled(self, rounds: int) -> NDArray[np.bool_]:
        """Return (N, clients): whether a client will train in at least one of the next rounds."""

    def advance(self, rounds: int) -> TrainingReport:
        """Train all courses for some rounds and evaluate them after the last."""

    def snapshot(self, position: int) -> CourseSnapshot:
        """Return the state of a course; it can be restored any number of times."""

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        """Go back to a snapshot of any course of the same task and instances."""
