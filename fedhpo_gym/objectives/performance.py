"""What models are worth, loss, error, F1 and fairness, and what an evaluation spends."""

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
    """Return (B, splits) means over clients, then seeds; the worst where training diverged.

    The worst loss is ``LARGEST``, the worst accuracy and F1 are 0; of other metrics, `worst` says
    it.
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
    """Make the objective ``{split}_{measure}``, read at the best round by validation loss.

    The value is the sample-weighted mean over clients, then the mean over seeds: of the "loss"
    (natural logarithm, nats), the "error" (1 - accuracy), "f1", or what else is measured.
    """
    known = {spec.objective: spec for spec in metrics}
    require_known("split", split, splits)
    require_known("measure", measure, known)
    spec = known[measure]
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
    """Make the objectives of all metrics; those of the validation data come first."""
    first = sorted(splits, key=lambda split: split != "val")
    return tuple(
        performance_objective(split, spec.objective, metrics, splits)
        for split in first
        for spec in metrics
    )


FAIRNESS_METRIC: Final[Metric] = "accuracy"
"""What the named objectives compare between clients."""
FAIRNESS_NAMES: Final = ("std", "p10", "p50", "p90", "worst", "jain")
_QUANTILES: Final = np.array([0.1, 0.5, 0.9])
WORST_FAIRNESS: Final = (0.5, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The fairness vector where training diverged; half zeros and half ones spread most, by 0.5."""


@validate_failed_call
def fairness_vector(values: ArrayLike) -> NDArray[np.float64]:
    """Return (..., 6) spread and tail of (..., S, N) client-wise performance, averaged over seeds.

    Entries follow ``FAIRNESS_NAMES``: population standard deviation, the 10th, 50th and 90th
    percentile (linear interpolation), the worst client, and Jain's index ``(sum x)^2 / (n sum
    x^2)`` (Jain, Chiu and Hawe, 1984, Eq. 1), which is 1 when all clients are equal, all zeros
    included. NaN marks a client without data, which is left out.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2 or 0 in array.shape:
        raise InvalidArgumentError(f"`values` must have shape (..., S, N), got {array.shape}.")
    rows = array.reshape(-1, array.shape[-1])
    sizes = np.add.reduce(~np.isnan(rows), axis=1, dtype=np.intp)
    if not sizes.all():
        raise InvalidArgumentError("`values` must have at least one client per seed, got only NaN.")
    ordered = np.sort(rows, axis=1)  # NaN comes last
    per_seed = np.empty((len(rows), len(FAIRNESS_NAMES)))
    for size in np.flatnonzero(np.bincount(sizes)).tolist():
        alike = sizes == size
        per_seed[alike] = _measures(ordered[alike, :size])
    return np.asarray(per_seed.reshape(*array.shape[:-1], len(FAIRNESS_NAMES)).mean(axis=-2))


@validate_failed_call
def client_fairness(evaluation: Evaluation | Evaluations) -> NDArray[np.float64]:
    """Return the (6,) fairness vector of an evaluation, (B, 6) of B, over clients with samples.

    It is of their validation accuracies. Where training diverged, it is ``WORST_FAIRNESS``: clients
    that all have nothing are equal.
    """
    key = "client_fairness"
    if key not in evaluation.memo:
        values = evaluation.clients("val", FAIRNESS_METRIC)
        has_samples = evaluation.num_samples[..., SPLITS.index("val")] > 0
        measured = fairness_vector(np.where(has_samples, values, np.nan))
        found = np.where(np.asarray(evaluation.has_diverged)[..., None], WORST_FAIRNESS, measured)
        found.flags.writeable = False
        evaluation.memo[key] = found
    return evaluation.memo[key]


def fairness_objective(measure: str) -> Objective:
    """Make the objective ``fairness_{measure}`` of client-wise validation accuracy."""
    require_known("fairness measure", measure, FAIRNESS_NAMES)
    is_spread = measure == "std"
    position = FAIRNESS_NAMES.index(measure)
    bounds = (0.0, WORST_FAIRNESS[position] if is_spread else 1.0)

    def compute(evaluations: Evaluations, _spent: Spent) -> NDArray[np.float64]:
        return client_fairness(evaluations)[:, position]

    def sensitivity(clients: NDArray[np.float64]) -> NDArray[np.float64]:
        # A standard deviation of n values is a norm of them over the root of n; one value that
        # moves by 1 changes it most if all others are equal. A quantile may jump with one client.
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


def _measures(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (S, 6) measures of (S, n) clients, the worst first."""
    size = ordered.shape[1]
    square_sum = np.sum(ordered**2, axis=1)
    total = np.sum(ordered, axis=1)
    some = square_sum > 0
    jain = np.where(some, total**2 / np.where(some, size * square_sum, 1), 1)
    out = np.empty((len(ordered), len(FAIRNESS_NAMES)))
    away = ordered - (total / size)[:, None]
    out[:, 0] = np.sqrt(np.sum(away * away, axis=1) / size)
    positions = _QUANTILES * (size - 1)
    below = positions.astype(np.intp)
    low, high = ordered[:, below], ordered[:, np.minimum(below + 1, size - 1)]
    out[:, 1:4] = low + (positions - below) * (high - low)
    out[:, 4] = ordered[:, 0]
    out[:, 5] = jain
    return out


FAIRNESS: Final[tuple[Objective, ...]] = tuple(fairness_objective(name) for name in FAIRNESS_NAMES)


Costs = Mapping[str, float | NDArray[np.float64]]

COST_NAMES: Final = ("time_s", "upload_bytes", "download_bytes", "parameter_epochs", "energy_j")
"""What costs hold: three fields of `Cost`; the parameters of the model times the local epochs of a
client, times the clients that train in a round, times the rounds; and the joules that clients
need, NaN where no device model knows them."""
FLOPS_PER_PARAMETER: Final = 6
"""Floating point operations that a parameter and a sample cost: an addition and a multiplication
forward, and twice as many backward (Kaplan et al., 2020, Section 2.1)."""
ENERGY: Final = "energy_j"
"""The objective that only some device models know."""
MAX_BYTES: Final = 1e15
MAX_FLOPS: Final = 1e24
MAX_J: Final = 1e15
BUDGET_S: Final = 21_600.0
"""Bound of simulated time where no problem says its budget."""


class Spending(Spent):
    """The privacy and the costs of B whole queries; costs are computed when an objective asks."""

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
    """Make the objective that minimizes one of ``PRIVACY_NAMES``."""
    require_known("privacy measure", name, PRIVACY_NAMES)
    position = PRIVACY_NAMES.index(name)

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.privacy.vector()[..., position])

    unit, high = ("1", 1.0) if name == "delta" else ("nats", CAP)
    return Objective(name, unit, True, (0.0, high), compute, sensitivity=np.zeros_like)


def cost_objective(name: str, unit: str, highest: float) -> Objective:
    """Make the objective that minimizes one of `COST_NAMES`."""

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        return np.full(len(evaluations), spent.costs[name], dtype=np.float64)

    return Objective(name, unit, True, (0.0, highest), compute, sensitivity=np.zeros_like)


def flops_objective() -> Objective:
    """Make the objective ``flops``: an estimate of what all clients compute in training.

    It is ``FLOPS_PER_PARAMETER`` times the parameters of the model, times all samples that are read
    (mean over clients and seeds). That is what layers of a perceptron cost. Layers that use a
    parameter several times per sample, such as convolutions, cost more.
    """

    def compute(evaluations: Evaluations, spent: Spent) -> NDArray[np.float64]:
        samples = evaluations.num_samples[..., SPLITS.index("train")].mean(axis=(-2, -1))
        epochs = np.full(len(evaluations), spent.costs["parameter_epochs"], dtype=np.float64)
        return np.asarray(epochs * (FLOPS_PER_PARAMETER * samples))

    return Objective("flops", "FLOP", True, (0.0, MAX_FLOPS), compute, sensitivity=np.zeros_like)


def cost_objectives(budget_s: float = BUDGET_S) -> tuple[Objective, ...]:
    """Make the objectives of costs."""
    return (
        cost_objective("time_s", "s", budget_s),
        cost_objective("upload_bytes", "bytes", MAX_BYTES),
        cost_objective("download_bytes", "bytes", MAX_BYTES),
        flops_objective(),
        cost_objective(ENERGY, "J", MAX_J),
    )


PRIVACY: Final[tuple[Objective, ...]] = tuple(privacy_objective(name) for name in PRIVACY_NAMES)
