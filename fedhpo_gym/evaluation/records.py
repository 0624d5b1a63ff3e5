"""Frozen records that cross the borders between layers."""

import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.checks import as_integer, as_number
from fedhpo_gym.errors import InvalidArgumentError, require_known

Split: TypeAlias = str
Metric: TypeAlias = str

SPLITS: Final[tuple[Split, ...]] = ("train", "val", "test")
METRICS: Final[tuple[Metric, ...]] = ("loss", "accuracy", "f1")
Entries: TypeAlias = frozenset[tuple[Split, Metric]]
ENTRIES: Final[Entries] = frozenset(itertools.product(SPLITS, METRICS))


@dataclass(frozen=True)
class Fidelity:
    """How much one function evaluation may cost: the b of f(lambda, b) in FedHPO-Bench.

    Attributes:
        round: Number of communication rounds, 0 or more (0: the untrained model).
        client_sample_rate: Share of the clients drawn in each round, in (0, 1].

    Raises:
        InvalidArgumentError: A field is of the wrong type or out of its range.
    """

    round: int
    client_sample_rate: float

    def __post_init__(self) -> None:
        """Check both fields and turn numpy scalars into built-in ones."""
        rounds, rate = as_integer(self.round), as_number(self.client_sample_rate)
        if rounds is None or rounds < 0:
            raise InvalidArgumentError(
                f"`round` must be a non-negative integer, got {self.round!r}."
            )
        if rate is None or not 0.0 < rate <= 1.0:
            raise InvalidArgumentError(
                f"`client_sample_rate` must be in (0, 1], got {self.client_sample_rate!r}."
            )
        object.__setattr__(self, "round", rounds)
        object.__setattr__(self, "client_sample_rate", float(rate))

    def sampled_clients(self, num_clients: int) -> int:
        """Return how many of ``num_clients`` take part in a round: at least one."""
        # The slack keeps 0.29 * 100 = 28.999999999999996 at 29 clients.
        return max(1, math.floor(self.client_sample_rate * num_clients + 1e-9))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """f(lambda, b) with nothing aggregated: axes (seeds, clients, splits, metrics).

    S seeds, N clients; the last two axes follow ``SPLITS`` and ``METRICS``.

    Attributes:
        best: (S, N, 3, 3) metrics at the round of the lowest validation loss so far, per seed.
        current: (S, N, 3, 3) metrics at the requested round; None where the backend does not
            know them.
        num_samples: (S, N, 3) samples of each client in each split.
        best_round: (S,) the round of ``best``.
        diverged: (S,) whether training of that seed diverged by the requested round.
        seeds: The S seeds, in the order of the first axis.
        fidelity: What was asked for.

    Raises:
        InvalidArgumentError: An array has the wrong shape.
    """

    best: NDArray[np.floating]
    current: NDArray[np.floating] | None
    num_samples: NDArray[np.integer]
    best_round: NDArray[np.integer]
    diverged: NDArray[np.bool_]
    seeds: tuple[int, ...]
    fidelity: Fidelity

    def __post_init__(self) -> None:
        """Check that every array agrees with the shape of ``best`` and the seeds."""
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

    def mean(
        self, split: Split, metric: Metric, which: Literal["best", "current"] = "best"
    ) -> float:
        """Return one number: sample-weighted mean over clients, then plain mean over seeds.

        The weighting is the ``weighted_avg`` of FederatedScope that FedHPO-Bench reports.
        A client without samples in the split has no say, whatever its entry holds.

        Raises:
            UnknownNameError: ``split`` or ``metric`` does not exist.
            InvalidArgumentError: ``which`` is unknown to this record, or a seed has no sample
                in the split.
        """
        row, column = position("split", split, SPLITS), position("metric", metric, METRICS)
        if which not in self._means:
            self.clients(split, metric, which)
        value = self._means[which][row, column]
        if np.isnan(value):
            raise InvalidArgumentError(f"`split` must hold samples, but {split!r} is empty.")
        return float(value)

    @cached_property
    def memo(self) -> dict[Hashable, NDArray[np.float64]]:
        """What was computed of this evaluation, by name; its arrays cannot be written into."""
        return {}

    @cached_property
    def _means(self) -> dict[str, NDArray[np.float64]]:
        """(splits, metrics) means; NaN where a seed has no sample in the split."""
        known = {"best": self.best, "current": self.current}
        return {
            name: client_means(values, self.num_samples)
            for name, values in known.items()
            if values is not None
        }

    def clients(
        self, split: Split, metric: Metric, which: Literal["best", "current"] = "best"
    ) -> NDArray[np.floating]:
        """Return the (S, N) view of one metric in one split, client by client.

        Raises:
            UnknownNameError: ``split`` or ``metric`` does not exist.
            InvalidArgumentError: ``which`` is unknown to this record.
        """
        if which not in ("best", "current"):
            raise InvalidArgumentError(f"`which` must be 'best' or 'current', got {which!r}.")
        source = self.best if which == "best" else self.current
        if source is None:
            raise InvalidArgumentError(
                "`which`='current' is not known to this backend, which only records the best "
                "round so far; use which='best'."
            )
        return source[:, :, position("split", split, SPLITS), position("metric", metric, METRICS)]


@dataclass(frozen=True)
class Cost:
    """What one evaluation costs on the simulated clock.

    Attributes:
        time_s: Simulated seconds, ``communication_s + computation_s``.
        communication_s: Simulated seconds spent on messages.
        computation_s: Simulated seconds spent by the slowest client and the server.
        upload_bytes: Bytes from clients to the server.
        download_bytes: Bytes from the server to clients.
        rounds: Communication rounds paid for.
    """

    time_s: float
    communication_s: float
    computation_s: float
    upload_bytes: float
    download_bytes: float
    rounds: int


def client_means(
    values: NDArray[np.floating], num_samples: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return sample-weighted means over clients, then plain means over seeds.

    Args:
        values: (..., S, N, splits, metrics).
        num_samples: (S, N, splits), or (..., S, N, splits).

    Returns:
        (..., splits, metrics) means; NaN where a seed has no sample in the split. Leading axes
        change no bit: sums over clients and seeds run in their order.
    """
    weights = num_samples[..., None].astype(np.float64)
    with np.errstate(invalid="ignore"):
        shares = weights / weights.sum(axis=-3, keepdims=True)
    # What a client without samples reports means nothing.
    known = values if (weights > 0).all() else np.where(weights > 0, values, 0.0)
    total = sum_in_order(known * shares, axis=-3)
    return np.asarray(total.mean(axis=-3), dtype=np.float64)


def sum_in_order(terms: NDArray[np.floating], axis: int) -> NDArray[np.floating]:
    """Return the sum along an axis, one term after the other: other axes change no bit.

    `np.sum` adds pairs first along some axes and not along others.
    """
    parts = np.ascontiguousarray(np.moveaxis(terms, axis, 0))
    if parts[0].size < 2:  # of single numbers, a reduction would add pairs; of rows it does not
        return np.asarray(np.add.accumulate(parts, axis=0)[-1])
    rows = parts.reshape(len(parts), -1)
    return np.asarray(np.add.reduce(rows, axis=0)).reshape(parts.shape[1:])


def _check_shape(name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidArgumentError(
            f"`{name}` must have shape {shape} to match `best`, got {array.shape}."
        )


def position(kind: str, name: str, known: tuple[str, ...]) -> int:
    """Return the place of a split or a metric on its axis.

    Raises:
        UnknownNameError: there is none of this name.
    """
    require_known(kind, name, known)
    return known.index(name)
