"""Objectives of performance, fairness, privacy and costs.

`objectives_of` of the package assembles them for the metrics of a problem, and environments compute
the fairness vectors of observations here. Each factory returns an `Objective` whose `compute` reads
(B, seeds, clients, splits, metrics) arrays. All sums run in a fixed order per evaluation, so that a
value does not depend on its batch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import validate_call, validate_failed_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.records import (
    CLASSIFICATION,
    SPLITS,
    Evaluation,
    Evaluations,
    Metric,
    MetricSpec,
    Split,
)
from fedhpo_gym.objectives.base import LARGEST, Objective
from fedhpo_gym.objectives.privacy import CAP, PRIVACY_NAMES, PrivacyLedger, PrivacyLedgers, Spent


@validate_failed_call
def performances(
    evaluations: Evaluations, splits: Sequence[Split], metric: Metric, worst: float | None = None
) -> NDArray[np.float64]:
    """Return means over clients, then seeds, or the worst value after divergence: (B, splits).

    The worst loss is ``LARGEST``, the worst accuracy and F1 are 0; `worst` overrides these, and is
    needed for other metrics.
    """
    values, diverged = evaluations.means(splits, metric), evaluations.has_diverged
    if not diverged.any():
        return values
    if worst is None:
        worst = LARGEST if metric == "loss" else 0.0
    return np.where(diverged[:, None], worst, values)


@validate_call
def performance_objective(
    split: str,
    measure: str,
    metrics: Sequence[MetricSpec] = CLASSIFICATION,
    splits: Sequence[str] = SPLITS,
) -> Objective:
    """Return the objective ``{split}_{measure}`` at the best round by validation loss.

    The value is the sample-weighted mean over clients, then the mean over seeds, of the "loss"
    (natural logarithm, nats), the "error" (1 - accuracy), "f1", or another metric.
    """
    specs = {spec.objective: spec for spec in metrics}
    require_known("split", split, splits)
    require_known("measure", measure, specs)
    spec = specs[measure]
    is_error = spec.complement is not None
    worst = LARGEST if spec.open_ended else spec.worst
    low, high = spec.bounds
    bounds = (1.0 - high, 1.0 - low) if is_error else spec.bounds

    def compute(evaluations: Evaluations, _spent: Spent) -> NDArray[np.float64]:
        values = performances(evaluations, (split,), spec.name, worst)[:, 0]
        return 1.0 - values if is_error else values

    def sensitivity(clients: NDArray[np.float64]) -> NDArray[np.float64]:
        return (high - low) / clients

    return Objective(
        name=f"{split}_{measure}",
        unit=spec.unit,
        minimize=spec.minimize != is_error,
        bounds=bounds,
        compute=compute,
        open_ended=spec.open_ended,
        sensitivity=None if split == "test" else sensitivity,
        reads=frozenset({(split, spec.name)}),
    )


def performance_objectives(
    metrics: Sequence[MetricSpec] = CLASSIFICATION, splits: Sequence[str] = SPLITS
) -> tuple[Objective, ...]:
    """Return the objectives of all metrics, those of the validation split first."""
    ordered_splits = sorted(splits, key=lambda split: split != "val")
    return tuple(
        performance_objective(split, spec.objective, metrics, splits)
        for split in ordered_splits
        for spec in metrics
    )


FAIRNESS_METRIC: Final[Metric] = "accuracy"
"""The metric whose spread over clients the fairness objectives measure."""
FAIRNESS_NAMES: Final = ("std", "p10", "p50", "p90", "worst", "jain")
_QUANTILES: Final = np.array([0.1, 0.5, 0.9])
WORST_FAIRNESS: Final = (0.5, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The fairness vector after divergence; 0.5 is the largest possible standard deviation."""


@validate_failed_call
def fairness_vector(values: ArrayLike) -> NDArray[np.float64]:
    """Return fairness measures of (..., S, N) values of clients, averaged over seeds: (..., 6).

    Entries follow ``FAIRNESS_NAMES``: population standard deviation, the 10th, 50th and 90th
    percentile (linear interpolation), the worst client, and Jain's index ``(sum x)^2 / (n sum
    x^2)`` (Jain, Chiu and Hawe, 1984, Eq. 1), which is 1 if all clients are equal, also for all
    zeros. Clients without data have NaN and are skipped.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2 or 0 in array.shape:
        raise InvalidArgumentError(f"`values` must have shape (..., S, N), got {array.shape}.")
    rows = array.reshape(-1, array.shape[-1])
    sizes = np.add.reduce(~np.isnan(rows), axis=1, dtype=np.intp)
    if not sizes.all():
        raise InvalidArgumentError("`values` must have at least one client per seed, got only NaN.")
    ordered = np.sort(rows, axis=1)  # NaN is sorted to the end
    per_seed = np.empty((len(rows), len(FAIRNESS_NAMES)))
    for size in np.flatnonzero(np.bincount(sizes)).tolist():
        has_size = sizes == size
        per_seed[has_size] = _measure_fairness(ordered[has_size, :size])
    return np.asarray(per_seed.reshape(*array.shape[:-1], len(FAIRNESS_NAMES)).mean(axis=-2))


@validate_failed_call
def client_fairness(evaluation: Evaluation | Evaluations) -> NDArray[np.float64]:
    """Return the fairness vector of validation accuracies: (6,), or (B, 6) for B evaluations.

    Clients without samples are skipped. After divergence it is ``WORST_FAIRNESS``, because clients
    that all fail would count as equal.
    """
    key = "client_fairness"
    if key not in evaluation.memo:
        values = evaluation.clients("val", FAIRNESS_METRIC)
        has_samples = evaluation.num_samples[..., SPLITS.index("val")] > 0
        measured = fairness_vector(np.where(has_samples, values, np.nan))
        fairness = np.where(
            np.asarray(evaluation.has_diverged)[..., None], WORST_FAIRNESS, measured
        )
        fairness.flags.writeable = False
        evaluation.memo[key] = fairness
    return evaluation.memo[key]


def fairness_objective(measure: str) -> Objective:
    """Return the objective ``fairness_{measure}`` of validation accuracies of clients."""
    require_known("fairness measure", measure, FAIRNESS_NAMES)
    is_spread = measure == "std"
    index = FAIRNESS_NAMES.index(measure)
    bounds = (0.0, WORST_FAIRNESS[index] if is_spread else 1.0)

    def compute(evaluations: Evaluations, _spent: Spent) -> NDArray[np.float64]:
        return client_fairness(evaluations)[:, index]

    def sensitivity(clients: NDArray[np.float64]) -> NDArray[np.float64]:
        # The standard deviation is a norm over the root of n, and one value that moves by 1 changes
        # it most if all others are equal. One client can move a quantile through its whole range.
        return np.sqrt(clients - 1) / clients if is_spread else np.ones_like(clients)

    return Objective(
        name=f"fairness_{measure}",
        unit="1",
        minimize=is_spread,
        bounds=bounds,
        compute=compute,
        sensitivity=sensitivity,
        reads=frozenset({("val", FAIRNESS_METRIC)}),
    )


def _measure_fairness(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (S, 6) measures of (S, n) values of clients in ascending order."""
    size = ordered.shape[1]
    square_sum = np.sum(ordered**2, axis=1)
    total = np.sum(ordered, axis=1)
    is_positive = square_sum > 0
    jain = np.where(is_positive, total**2 / np.where(is_positive, size * square_sum, 1), 1)
    measures = np.empty((len(ordered), len(FAIRNESS_NAMES)))
    deviations = ordered - (total / size)[:, None]
    measures[:, 0] = np.sqrt(np.sum(deviations * deviations, axis=1) / size)
    positions = _QUANTILES * (size - 1)
    below = positions.astype(np.intp)
    low, high = ordered[:, below], ordered[:, np.minimum(below + 1, size - 1)]
    measures[:, 1:4] = low + (positions - below) * (high - low)
    measures[:, 4] = ordered[:, 0]
    measures[:, 5] = jain
    return measures


FAIRNESS: Final[tuple[Objective, ...]] = tuple(fairness_objective(name) for name in FAIRNESS_NAMES)


Costs = Mapping[str, float | NDArray[np.float64]]

COST_NAMES: Final = ("time_s", "upload_bytes", "download_bytes", "parameter_epochs", "energy_j")
"""Names of costs: three fields of `Cost`; the parameters of the model times local epochs, times the
clients per round, times rounds; and the energy of clients in joules, NaN without a device model."""
FLOPS_PER_PARAMETER: Final = 6
"""Floating point operations per parameter and sample: an addition and a multiplication in the
forward pass, and twice as many in the backward pass (Kaplan et al., 2020, Section 2.1)."""
ENERGY: Final = "energy_j"
"""The objective that only some device models provide."""
MAX_BYTES: Final = 1e15
MAX_FLOPS: Final = 1e24
MAX_J: Final = 1e15
BUDGET_S: Final = 21_600.0
"""Bound of simulated time in seconds without a problem, which would define its budget."""


class Spending(Spent):
    """The privacy and the costs of B queries; costs are computed at their first use."""

    def __init__(
        self, privacy: PrivacyLedger | PrivacyLedgers, find_costs: Callable[[], Costs]
    ) -> None:
        self._privacy, self._find = privacy, find_costs

    @property
    def privacy(self) -> PrivacyLedger | PrivacyLedgers:
        return self._privacy

    @cached_property
    def costs(self) -> Costs:
        """The costs, by each of `COST_NAMES`."""
        return self._find()


def privacy_objective(name: str) -> Objective:
    """Return the objective that minimizes one of ``PRIVACY_NAMES``."""
    require_known("privacy measure", name, PRIVACY_NAMES)
    index = PRIVACY_NAMES.index(name)

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.privacy.vector()[..., index])

    unit, high = ("1", 1.0) if name == "delta" else ("nats", CAP)
    return Objective(name, unit, True, (0.0, high), compute, sensitivity=np.zeros_like)


def cost_objective(name: str, unit: str, highest: float) -> Objective:
    """Return the objective that minimizes one of `COST_NAMES`."""

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.costs[name], dtype=np.float64)

    return Objective(name, unit, True, (0.0, highest), compute, sensitivity=np.zeros_like)


def flops_objective() -> Objective:
    """Return the objective ``flops``, an estimate of the computation of all clients in training.

    It is ``FLOPS_PER_PARAMETER`` times the parameters of the model, times the number of samples
    read (mean over clients and seeds). This holds for layers of a perceptron. Layers that use a
    parameter several times per sample, such as convolutions, need more operations.
    """

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        samples = evaluations.num_samples[..., SPLITS.index("train")].mean(axis=(-2, -1))
        epochs = np.full(len(evaluations), spent.costs["parameter_epochs"], dtype=np.float64)
        return np.asarray(epochs * (FLOPS_PER_PARAMETER * samples))

    return Objective("flops", "FLOP", True, (0.0, MAX_FLOPS), compute, sensitivity=np.zeros_like)


def cost_objectives(budget_s: float = BUDGET_S) -> tuple[Objective, ...]:
    """Return the objectives of costs."""
    return (
        cost_objective("time_s", "s", budget_s),
        cost_objective("upload_bytes", "bytes", MAX_BYTES),
        cost_objective("download_bytes", "bytes", MAX_BYTES),
        flops_objective(),
        cost_objective(ENERGY, "J", MAX_J),
    )


PRIVACY: Final[tuple[Objective, ...]] = tuple(privacy_objective(name) for name in PRIVACY_NAMES)
