"""How well the federated model does: loss, error, and F1 over all clients."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import require_known
from fedhpo_gym.evaluation.records import (
    CLASSIFICATION,
    SPLITS,
    Evaluations,
    Metric,
    MetricSpec,
    Split,
)
from fedhpo_gym.objectives.base import LARGEST, Objective
from fedhpo_gym.objectives.privacy import Spent
from fedhpo_gym.typed import checked_types, explained_types


@explained_types
def performances(
    evaluations: Evaluations,
    splits: Sequence[Split],
    metric: Metric,
    worst: float | None = None,
) -> NDArray[np.float64]:
    """Return means of a metric as they are judged: the worst where training diverged.

    Args:
        evaluations: B evaluations.
        splits: of ``"train"``, ``"val"`` and ``"test"``.
        metric: ``"loss"``, whose worst value is ``LARGEST``, or ``"accuracy"`` or ``"f1"``: 0.
        worst: The worst value of another metric.

    Returns:
        (B, splits) sample-weighted means over clients, then means over seeds.

    Raises:
        UnknownNameError: A split or the metric does not exist.
        InvalidArgumentError: A seed has no sample in a split.
    """
    values, diverged = evaluations.means(splits, metric), evaluations.has_diverged
    if not diverged.any():
        return values
    return np.where(diverged[:, None], _worst(metric, worst), values)


def _worst(metric: Metric, worst: float | None) -> float:
    if worst is not None:
        return worst
    return LARGEST if metric == "loss" else 0.0


@checked_types
def performance_objective(
    split: str,
    measure: str,
    metrics: Sequence[MetricSpec] = CLASSIFICATION,
    splits: Sequence[str] = SPLITS,
) -> Objective:
    """Make the objective ``{split}_{measure}``, read at the best round by validation loss.

    The value is the sample-weighted mean over clients, then the mean over seeds; see `Objective`
    for evaluations that diverged.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        measure: Name of a metric's objective: ``"loss"`` (natural logarithm, nats), ``"error"``
            (1 - accuracy) or ``"f1"`` of the metrics that the engine measures.
        metrics: What the evaluations hold; see `Problem.metrics`.
        splits: See `Problem.splits`.

    Raises:
        UnknownNameError: The split or the measure does not exist.
    """
    known = {spec.objective: spec for spec in metrics}
    require_known("split", split, splits)
    require_known("measure", measure, known)
    spec = known[measure]
    where, metric = split, spec.name
    is_error = spec.complement is not None
    worst = LARGEST if spec.open_ended else spec.worst
    low, high = spec.bounds
    bounds = (1.0 - high, 1.0 - low) if is_error else spec.bounds

    def compute(evaluations: Evaluations, _spent: Spent) -> NDArray[np.float64]:
        values = performances(evaluations, (where,), metric, worst)[:, 0]
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
        reads=frozenset({(where, metric)}),
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
