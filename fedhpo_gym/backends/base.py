"""What answers queries, as columns, and what keeps courses running between steps."""

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
"""A configuration and the fidelity it is asked at."""
LACKS: Mapping[str, tuple[str, ...]] = {
    "clients": ("fairness",),
    "samples": ("flops",),
    "privacy": ("epsilon", "delta"),
}
"""What stored numbers may lack besides metrics -> words in the names of objectives that need it."""


def one_validates(num_samples: NDArray[np.int64]) -> bool:
    """Return whether of (..., clients, splits) samples one client alone has some to validate on."""
    return bool((num_samples[..., SPLITS.index("val")] > 0).sum(axis=-1).max() < 2)


OF_CLIENTS: Final = ("fairness_std", "fairness_jain")
"""Objectives that compare clients: of one client they are constant."""
CheckedQuery = tuple[dict[str, Value], Fidelity]
"""A query whose values are legal and built-in numbers."""


class Backend(ABC):
    """A source of numbers for one task, whose `look_up` answers columns of queries.

    Attributes:
        name: name in `gym.make(..., backend=name)`.
        task: the task.
        seeds: the seeds an answer holds, in order.
        space: configurations it answers: a grid, or intervals.
        fidelity_space: fidelities it answers.
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
        """The only seed it answers for, or None if it answers for all seeds of the task."""
        return None if self.seeds == self.task.seeds else self.seeds[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what opens it again: task and seed, not its data."""
        return type(self), (self.task, self.seed)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of everything its numbers depend on, for run records."""

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """(seeds, clients, splits) samples; an error where they are not known before a trial."""
        raise InvalidArgumentError(
            f"`backend` must have stored numbers, which say how many samples clients have, got "
            f"{self.name!r}"
        )

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        """Fingerprints that older records have of the same numbers."""
        return ()

    @property
    def card(self) -> Mapping[str, Any]:
        """What is said of stored numbers; nothing where none answer."""
        return {}

    @property
    def lacks(self) -> Mapping[str, str]:
        """What its numbers do not say, and why: a metric such as `test_f1`, or one of `LACKS`."""
        reasons: Mapping[str, str] = self.card.get(LACKING, {})
        return reasons

    def why_refused(self, objective: str) -> str:
        """Return why it does not answer an objective of the task's; "" where it does."""
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
            with suppress(InvalidArgumentError):  # some know no samples before a trial
                if one_validates(self.num_samples):
                    return "one client alone is validated, so that it is constant"
        return ""

    def describe(self) -> dict[str, object]:
        """Return what `reset` says of it besides name, fingerprint and seeds, as plain data."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what outlives an object, such as processes; it may be asked again."""

    def evaluate(self, configuration: Mapping[str, object], fidelity: Fidelity) -> Evaluation:
        """Return f(configuration, fidelity) for every seed, client, split and metric.

        Raises:
            InvalidArgumentError: a value is missing, unknown or out of range.
            OffGridError: the backend answers a grid only, and this is not on it.
        """
        return self.evaluate_many([(configuration, fidelity)])[0]

    def evaluate_many(self, queries: Sequence[Query]) -> Evaluations:
        """Return the answers to queries, checked as in `evaluate`; what trains, trains together."""
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
        """Return the answers to B queries; each has the bits that it has alone.

        Args:
            columns: (B,) legal values of every dimension of `space` and `fidelity_space`, by name;
                no more is checked than what costs nothing.
            reads: metrics of clients that are needed; others may be NaN.

        Raises:
            OffGridError: a value is not on the grid of a table.
        """

    def nearest(self, columns: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the (B,) legal values that it answers where others are asked for."""
        return columns

    def nearest_query(self, query: CheckedQuery) -> CheckedQuery:
        """Return the query that it answers where another is asked, as `nearest` does."""
        return query

    def cells(self, fixed: Mapping[str, Value]) -> PoolCells | None:
        """Return what it answers at fixed fidelities, where that is not the whole of `space`."""
        del fixed
        return None

    def queries(self, columns: Mapping[str, NDArray[Any]]) -> list[CheckedQuery]:
        """Return the queries of (B,) columns one by one, as those that train need them."""
        fidelities = zip(*(columns[name].tolist() for name in FIDELITIES), strict=True)
        rows = zip(self.space.configurations_of(columns), fidelities, strict=True)
        return [(configuration, Fidelity(*fidelity)) for configuration, fidelity in rows]

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Return values of some fidelity dimensions as the legal numbers they equal."""
        space = self.fidelity_space
        return {name: space[name].validate(value, "fidelity") for name, value in values.items()}


class StoredBackend(Backend):
    """A backend whose answers exist already: asking for all of them at once is cheap."""


Configuration = Mapping[str, Value]

Metrics = NDArray[np.float32]
"""(..., clients, splits, metrics); the last two axes follow `SPLITS` and `METRICS`."""


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """What some rounds of N courses brought."""

    metrics: Metrics  # (N, clients, splits, metrics) after the last round, of the last finite model
    diverged: NDArray[np.bool_]  # (N,) whether a course has left the finite numbers, now or before
    feedback: ClientFeedback  # of these rounds
    # (N,) inner products of this move of the global model and the one before; None unless needed.
    move_product: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class CourseSnapshot:
    """Where a course stands."""

    instance: int  # index of the instance it is on
    state: object  # what the courses that made it need to continue; opaque to all others
    move: object = None  # how the model moved last, where that is reported; opaque, too


class Courses(Protocol):
    """N federated courses of one task, each on an instance, that take rounds together."""

    name: ClassVar[str] = "raw"  # what trains them, as in `gymnasium.make(..., backend=name)`

    @property
    def fingerprint(self) -> str:
        """Digest of everything that numbers depend on, for run records."""
        return ""

    def describe(self) -> dict[str, object]:
        """Return what `reset` says of what trains them, as plain data."""
        return {}

    def close(self) -> None:
        """Give back what outlives an object, such as processes; courses can go on after it."""

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """(N, clients, splits) samples of the instances the courses are on."""

    @property
    def most_samples(self) -> NDArray[np.int64]:
        """(clients,) the most training samples a client has on any instance."""

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        """Put some courses at round 0 of other instances, or of the same ones."""

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        """Return (positions, clients, splits, metrics) of the untrained models of some courses."""

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        """Set the hyperparameters of all courses from here on."""

    def sampled(self, rounds: int) -> NDArray[np.bool_]:
        """Return (N, clients): who will train in at least one of the next rounds."""

    def advance(self, rounds: int) -> TrainingReport:
        """Train all courses for some rounds and evaluate them after the last."""

    def snapshot(self, position: int) -> CourseSnapshot:
        """Return where a course stands; it can be restored any number of times."""

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        """Go back to a snapshot of any course of the same task and instances."""
