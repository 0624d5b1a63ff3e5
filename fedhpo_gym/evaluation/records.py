"""Frozen records that layers exchange: fidelities, evaluations and their costs.

Backends return `Evaluations`, which hold the metrics of every seed, client and split without any
aggregation; objectives, environments and analyses read them. Arrays have the axes (evaluations,
seeds, clients, splits, metrics), where the last two follow `SPLITS` and `METRICS`, and one
`Evaluation` lacks the first axis. All reductions run in a fixed order, so that a value has the
same bits alone and in a batch.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.checks import Axes, as_integer, as_number, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.space import SearchSpace

Split: TypeAlias = str
Metric: TypeAlias = str

SPLITS: Final[tuple[Split, ...]] = ("train", "val", "test")
METRICS: Final[tuple[Metric, ...]] = ("loss", "accuracy", "f1")
FIDELITIES: Final = ("round", "client_sample_rate")
Which: TypeAlias = Literal["best", "current"]
Entries: TypeAlias = frozenset[tuple[Split, Metric]]
ENTRIES: Final[Entries] = frozenset(itertools.product(SPLITS, METRICS))


@dataclass(frozen=True)
class Fidelity:
    """The fidelity of one function evaluation: the b of f(lambda, b) in FedHPO-Bench.

    Attributes:
        round: Number of communication rounds, 0 or more (0: the untrained model).
        client_sample_rate: Share of the clients sampled per round, in (0, 1].
    """

    round: int
    client_sample_rate: float

    def __post_init__(self) -> None:
        # Written out instead of `check_fields`, because each step creates one.
        rounds, rate = as_integer(self.round), as_number(self.client_sample_rate)
        if rounds is None or rounds < 0:
            raise InvalidArgumentError(f"`round` must be an integer >= 0, got {self.round!r}.")
        if rate is None or not 0.0 < rate <= 1.0:
            raise InvalidArgumentError(
                f"`client_sample_rate` must be in (0, 1], got {self.client_sample_rate!r}."
            )
        object.__setattr__(self, "round", rounds)
        object.__setattr__(self, "client_sample_rate", float(rate))

    def sampled_clients(self, num_clients: int) -> int:
        """Return how many of ``num_clients`` participate in a round: at least one."""
        slack = min(num_clients * RATE_SLACK, 0.5)
        return max(1, math.floor(self.client_sample_rate * num_clients + slack))


RATE_SLACK: Final = 2.0**-24
"""Tolerance of rates, per client, as 0.29 * 100 = 28.999999999999996 must count as 29. An action of
float32 in [-1, 1] rounds a rate by up to 2^-26, and by four times that on a log scale from 0.02."""


def num_sampled_clients(rates: Floats | float, clients: NDArray[Any]) -> Floats:
    """Return `Fidelity.sampled_clients` of (n,) rates and numbers of clients: (n,)."""
    slack = np.minimum(clients * RATE_SLACK, 0.5)
    return np.asarray(np.maximum(np.floor(rates * clients + slack), 1.0))


def query_columns(
    space: SearchSpace, queries: Sequence[tuple[Mapping[str, Any], Fidelity]]
) -> dict[str, NDArray[Any]]:
    """Return the (B,) columns of legal queries, by name, as `Backend.look_up` takes them."""
    columns = space.columns_of([configuration for configuration, _ in queries])
    fidelities = [vars(fidelity) for _, fidelity in queries]
    return columns | {name: np.array([f[name] for f in fidelities]) for name in FIDELITIES}


class _Metrics:
    """Base of one and of many evaluations: axes (..., seeds, clients, splits, metrics)."""

    best: NDArray[np.floating]
    num_samples: NDArray[np.integer]
    diverged: Bools

    @cached_property
    def memo(self) -> dict[Hashable, Floats]:
        """Cache of results by name; valid because the arrays of an evaluation never change."""
        return {}

    def _metrics(self, which: Which) -> NDArray[np.floating]:
        if which not in ("best", "current"):
            raise InvalidArgumentError(f"`which` must be 'best' or 'current', got {which!r}.")
        source: NDArray[np.floating] | None = getattr(self, which)
        if source is None:
            raise InvalidArgumentError(
                "`which`='current' is not known to this backend, which only records the best "
                "round so far; use which='best'."
            )
        return source

    def _means(self, splits: Sequence[Split], metric: Metric, which: Which) -> Floats:
        """Return means as `Evaluation.mean` does: (..., splits)."""
        column = axis_index("metric", metric, METRICS)
        key = ("client_means", which)
        if key not in self.memo:
            self.memo[key] = mean_over_clients(self._metrics(which), self.num_samples)
        return self.memo[key][..., [self._row(split) for split in splits], column]

    def _row(self, split: Split) -> int:
        row = axis_index("split", split, SPLITS)
        if row in self._empty:
            raise InvalidArgumentError(f"`split` must hold samples, but {split!r} is empty.")
        return row

    @cached_property
    def _empty(self) -> frozenset[int]:
        """Indices of the splits in which some seed has no sample."""
        missing = (self.num_samples.sum(axis=-2) == 0).reshape(-1, len(SPLITS)).any(axis=0)
        return frozenset(np.flatnonzero(missing).tolist())

    def clients(self, split: Split, metric: Metric, which: Which = "best") -> NDArray[np.floating]:
        """Return a view of one metric in one split: (..., S, N)."""
        row, column = axis_index("split", split, SPLITS), axis_index("metric", metric, METRICS)
        return self._metrics(which)[..., row, column]


@dataclass(frozen=True, eq=False)
class Evaluation(_Metrics):
    """One function value f(lambda, b), without aggregation.

    Axes are S seeds, N clients, ``SPLITS`` and ``METRICS``.

    Attributes:
        best: (S, N, 3, 3) metrics at the round of the lowest validation loss so far, per seed.
        current: (S, N, 3, 3) metrics at the requested round; None if the backend lacks them.
        num_samples: (S, N, 3) samples of each client in each split.
        best_round: (S,) the round of ``best``.
        diverged: (S,) whether training of that seed diverged by the requested round.
        seeds: The S seeds, in the order of the first axis.
        fidelity: The requested fidelity.
    """

    best: NDArray[np.floating]
    current: NDArray[np.floating] | None
    num_samples: NDArray[np.integer]
    best_round: NDArray[np.integer]
    diverged: Bools
    seeds: tuple[int, ...]
    fidelity: Fidelity

    def __post_init__(self) -> None:
        if self.best.ndim != 4 or self.best.shape[2:] != (len(SPLITS), len(METRICS)):
            raise InvalidArgumentError(
                f"`best` must have shape (seeds, clients, 3, 3), got {self.best.shape}."
            )
        num_seeds, num_clients = self.best.shape[:2]
        _check_shape("num_samples", self.num_samples, (num_seeds, num_clients, len(SPLITS)))
        _check_shape("best_round", self.best_round, (num_seeds,))
        _check_shape("diverged", self.diverged, (num_seeds,))
        if self.current is not None:
            _check_shape("current", self.current, self.best.shape)
        if len(self.seeds) != num_seeds:
            raise InvalidArgumentError(
                f"`seeds` must name the {num_seeds} seeds of `best`, got {self.seeds!r}."
            )

    @property
    def has_diverged(self) -> bool:
        """Whether training diverged under any of the seeds."""
        return bool(self.diverged.any())

    def mean(self, split: Split, metric: Metric, which: Which = "best") -> float:
        """Return the sample-weighted mean over clients, averaged over seeds.

        A client without samples in the split has weight 0, even if its entry is NaN.
        """
        return float(self._means((split,), metric, which)[0])


@dataclass(frozen=True, eq=False)
class Evaluations(_Metrics):
    """A batch of B evaluations of S seeds and N clients; `evaluations[i]` is an `Evaluation`.

    Attributes:
        best: (B, S, N, 3, 3) metrics at the round of the lowest validation loss so far, or NaN.
        num_samples: (S, N, 3) or (B, S, N, 3) samples of each client in each split.
        best_round: (B, S) rounds of `best`.
        diverged: (B, S) whether training of that seed diverged by the requested round.
        seeds: (S,) or (B, S).
        fidelity: (B,) values by name: `round`, `client_sample_rate`, and perhaps others.
        find_current: function that computes `current`; None if the backend lacks it.
    """

    best: NDArray[np.floating]
    num_samples: NDArray[np.integer]
    best_round: NDArray[np.integer]
    diverged: Bools
    seeds: NDArray[np.integer]
    fidelity: Mapping[str, NDArray[Any]]
    find_current: Callable[[], NDArray[np.floating]] | None = None

    def __post_init__(self) -> None:
        samples = self.num_samples.shape
        expected = (*samples[-3:-1], len(SPLITS), len(METRICS))
        samples_fit = samples[:-3] in ((), self.best.shape[:1])
        if self.best.ndim != 5 or self.best.shape[1:] != expected or not samples_fit:
            raise InvalidArgumentError(
                f"`best` must have shape (evaluations, {', '.join(map(str, expected))}) to match "
                f"`num_samples`, got {self.best.shape}."
            )
        shape = self.best.shape[:2]
        _check_shape("best_round", self.best_round, shape)
        _check_shape("diverged", self.diverged, shape)
        _check_shape("seeds", self.seeds, shape[2 - self.seeds.ndim :])

    @classmethod
    def stack(cls, evaluations: Sequence[Evaluation]) -> "Evaluations":
        """Return a batch of evaluations that have the same seeds and samples."""
        if not evaluations:
            raise InvalidArgumentError("`evaluations` must hold at least one, got none.")
        first = evaluations[0]
        if not all(np.array_equal(first.num_samples, e.num_samples) for e in evaluations):
            raise InvalidArgumentError("`evaluations` must have the same samples, but they differ.")
        fidelities = [vars(e.fidelity) for e in evaluations]
        current = [e.current for e in evaluations if e.current is not None]
        return cls(
            np.stack([e.best for e in evaluations]),
            first.num_samples,
            np.stack([e.best_round for e in evaluations]),
            np.stack([e.diverged for e in evaluations]),
            np.array([e.seeds for e in evaluations]),
            {name: np.array([f[name] for f in fidelities]) for name in fidelities[0]},
            (lambda: np.stack(current)) if len(current) == len(evaluations) else None,
        )

    def __len__(self) -> int:
        return len(self.best)

    def __iter__(self) -> Iterator[Evaluation]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Evaluation:

        def row_of(array: NDArray[Any], axes: int) -> NDArray[Any]:
            return array if array.ndim == axes else array[index]

        return Evaluation(
            best=self.best[index],
            current=None if self.current is None else self.current[index],
            num_samples=row_of(self.num_samples, 3),
            best_round=self.best_round[index],
            diverged=self.diverged[index],
            seeds=tuple(row_of(self.seeds, 1).tolist()),
            fidelity=Fidelity(*(self.fidelity[name][index] for name in FIDELITIES)),
        )

    @cached_property
    def current(self) -> NDArray[np.floating] | None:
        """(B, S, N, 3, 3) metrics at the requested rounds; None if the backend lacks them."""
        return None if self.find_current is None else self.find_current()

    @cached_property
    def has_diverged(self) -> Bools:
        """(B,) whether training diverged under any of the seeds."""
        return np.asarray(self.diverged.any(axis=1))

    def mean(self, split: Split, metric: Metric, which: Which = "best") -> Floats:
        """Return `Evaluation.mean` of each evaluation: (B,)."""
        return self._means((split,), metric, which)[:, 0]

    def means(self, splits: Sequence[Split], metric: Metric) -> Floats:
        """Return `mean` of several splits: (B, splits)."""
        return self._means(splits, metric, "best")


@dataclass(frozen=True)
class Cost:
    """The cost of one evaluation, with simulated time.

    Attributes:
        time_s: Simulated seconds, ``communication_s + computation_s``.
        computation_s: Simulated seconds of computation by the slowest client and the server.
        upload_bytes: Bytes from clients to the server.
        download_bytes: Bytes from the server to clients.
    """

    time_s: float
    communication_s: float
    computation_s: float
    upload_bytes: float
    download_bytes: float
    rounds: int


def mean_over_clients(values: NDArray[np.floating], num_samples: NDArray[np.integer]) -> Floats:
    """Return sample-weighted means over clients, then means over seeds: (..., splits, metrics)."""
    weights = num_samples[..., None].astype(np.float64)
    with np.errstate(invalid="ignore"):
        shares = weights / weights.sum(axis=-3, keepdims=True)
    # Metrics of clients without samples are arbitrary, and 0 * NaN would be NaN.
    reported = values if (weights > 0).all() else np.where(weights > 0, values, 0.0)
    return np.asarray(sum_in_order(reported * shares, axis=-3).mean(axis=-3), dtype=np.float64)


def sum_in_order(terms: NDArray[np.floating], axis: int) -> NDArray[np.floating]:
    """Return the sum along an axis, adding one term after the other.

    `np.sum` uses pairwise summation along some axes only, so its bits depend on the other axes.
    """
    parts = np.ascontiguousarray(np.moveaxis(terms, axis, 0))
    if parts[0].size < 2:  # `reduce` adds scalars pairwise, but rows in order
        return np.asarray(np.add.accumulate(parts, axis=0)[-1])
    return np.asarray(np.add.reduce(parts.reshape(len(parts), -1), axis=0)).reshape(parts.shape[1:])


def _check_shape(name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidArgumentError(
            f"`{name}` must have shape {shape} to match `best`, got {array.shape}."
        )


def axis_index(kind: str, name: str, names: tuple[str, ...]) -> int:
    """Return the index of a split or a metric on its axis."""
    require_known(kind, name, names)
    return names.index(name)


@dataclass(frozen=True)
class MetricSpec:
    """A metric that an evaluation holds for every seed, client and split.

    Attributes:
        bounds: finite lowest and highest value; values beyond them are clipped.
        complement: name of the objective 1 - value that replaces the metric; None keeps it.
        open_ended: whether values worse than the bounds occur, as for a loss.
    """

    name: str
    unit: str
    minimize: bool
    bounds: tuple[float, float]
    complement: str | None = None
    open_ended: bool = False

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidArgumentError(
                f"metric {self.name!r}: `bounds` must be finite and increasing, got {self.bounds!r}"
            )

    @property
    def objective(self) -> str:
        """Second part of the name of its objectives, such as `loss` in `val_loss`."""
        return self.complement or self.name

    @property
    def worst(self) -> float:
        """The worse of the bounds."""
        return self.bounds[1] if self.minimize else self.bounds[0]


MAX_LOSS: Final = 10.0
"""Upper bound of a loss, in nats: a model with a larger loss is equally useless."""

CLASSIFICATION: Final = (
    MetricSpec("loss", "nats", True, (0.0, MAX_LOSS), open_ended=True),
    MetricSpec("accuracy", "1", False, (0.0, 1.0), complement="error"),
    MetricSpec("f1", "1", False, (0.0, 1.0)),
)
"""The metrics of every model that the engine trains, in the order of the axis."""


@validate_call
def best_rounds(
    metrics: Annotated[NDArray[np.floating], Axes(5, 5, nan=True)],
    num_samples: Annotated[NDArray[np.integer], Axes(2, 2)],
) -> Integers:
    """Return the index of the best round up to each round: (runs, rounds).

    `metrics` are (runs, rounds, clients, splits, metrics). The best round has the lowest validation
    loss, a sample-weighted mean over clients; of equal losses the first counts.
    """
    weights = num_samples[:, 1] / num_samples[:, 1].sum()
    # Summed in a fixed order, because the rounding of a matrix product depends on its shape.
    loss = sum(metrics[:, :, i, 1, 0].astype(np.float64) * w for i, w in enumerate(weights))
    return running_argmin(np.asarray(loss))


def running_argmin(values: NDArray[np.floating]) -> Integers:
    """Return the index of the lowest value so far along the last axis, the first of equals."""
    lowest = np.minimum.accumulate(values, axis=-1)
    is_new = np.ones(values.shape, dtype=bool)
    is_new[..., 1:] = values[..., 1:] < lowest[..., :-1]
    return np.maximum.accumulate(np.where(is_new, np.arange(values.shape[-1]), 0), axis=-1)


def evaluation_from_curves(
    metrics: NDArray[np.floating],
    rounds: NDArray[np.integer],
    diverged_at: NDArray[np.integer],
    num_samples: NDArray[np.integer],
    seeds: tuple[int, ...],
    fidelity: Fidelity,
) -> Evaluation:
    """Return the evaluation at a fidelity of (seeds, R, clients, splits, metrics) curves."""
    curves = metrics[:, : np.searchsorted(rounds, fidelity.round, "right")]
    best_rows = np.stack(
        [best_rounds(curves[[row]], num_samples[row])[0, -1] for row in range(len(seeds))]
    )
    return Evaluation(
        best=curves[np.arange(len(best_rows)), best_rows],
        current=curves[:, -1].copy(),  # a copy, so that writing into it cannot change the curve
        num_samples=num_samples,
        best_round=rounds[best_rows],
        diverged=(diverged_at > 0) & (diverged_at <= fidelity.round),
        seeds=seeds,
        fidelity=fidelity,
    )


class SourceTask(NamedTuple):
    """Prior data of a problem that was tuned before: n trials at full fidelity."""

    name: str  # of the problem
    actions: Singles  # (n, d) coordinates of configurations, canonical
    scores: Floats  # (n,) in [0, 1], higher is better
    features: Floats  # (F,) of the federation, known before any trial


def validation_losses(answers: Evaluations, num_samples: NDArray[np.integer]) -> Floats:
    """Return the validation losses, infinity for diverged runs: (configurations, seeds)."""
    samples = num_samples[:, :, SPLITS.index("val")]  # of (seeds, clients, splits)
    weights = samples / samples.sum(axis=1, keepdims=True)
    values = np.where(samples > 0, answers.clients("val", "loss"), 0.0)
    return np.where(answers.diverged, np.inf, (values * weights).sum(axis=-1))
