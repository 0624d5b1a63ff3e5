"""How well the federated model does: loss, error, and F1 over all clients."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import SPLITS, Evaluation, Metric, Split
from fedhpo_gym.objectives.base import LARGEST, Objective
from fedhpo_gym.objectives.privacy import PrivacyLedger, PrivacyLedgers

MAX_LOSS: Final = 10.0
"""Upper bound of a loss, in nats: a model with a larger one is as useless as this one."""

# Measure -> metric it reads, unit, direction, bounds.
_Measure = tuple[Metric, str, bool, tuple[float, float]]
_MEASURES: Final[Mapping[str, _Measure]] = MappingProxyType(
    {
        "loss": ("loss", "nats", True, (0.0, MAX_LOSS)),
        "error": ("accuracy", "1", True, (0.0, 1.0)),
        "f1": ("f1", "1", False, (0.0, 1.0)),
    }
)


def performance(evaluation: Evaluation, split: Split, metric: Metric) -> float:
    """Return the mean of a metric as it is judged: the worst where training diverged.

    Args:
        evaluation: one evaluation.
        split: ``"train"``, ``"val"`` or ``"test"``.
        metric: ``"loss"``, whose worst value is ``LARGEST``, or ``"accuracy"`` or ``"f1"``: 0.

    Returns:
        The sample-weighted mean over clients, then the mean over seeds.

    Raises:
        UnknownNameError: The split or the metric does not exist.
        InvalidArgumentError: A seed has no sample in the split.
    """
    value = evaluation.mean(split, metric)
    return _worst(metric) if evaluation.has_diverged else value


def performances(
    evaluations: Evaluations, splits: Sequence[Split], metric: Metric
) -> NDArray[np.float64]:
    """Return (B, splits) numbers: `performance` of B evaluations in several splits.

    Raises:
        UnknownNameError: A split or the metric does not exist.
        InvalidArgumentError: A seed has no sample in a split.
    """
    values, diverged = evaluations.means(splits, metric), evaluations.has_diverged
    return np.where(diverged[:, None], _worst(metric), values) if diverged.any() else values


def _worst(metric: Metric) -> float:
    return LARGEST if metric == "loss" else 0.0


def performance_objective(split: Split, measure: str) -> Objective:
    """Make the objective ``{split}_{measure}``, read at the best round by validation loss.

    The value is the sample-weighted mean over clients, then the mean over seeds; see `Objective`
    for evaluations that diverged.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        measure: ``"loss"`` (natural logarithm, nats), ``"error"`` (1 - accuracy) or ``"f1"``.

    Raises:
        UnknownNameError: The split or the measure does not exist.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if measure not in _MEASURES:
        raise unknown_name("measure", measure, _MEASURES)
    metric, unit, minimize, bounds = _MEASURES[measure]
    is_error = measure == "error"

    def compute(evaluation: Evaluation, _privacy: PrivacyLedger) -> float:
        value = performance(evaluation, split, metric)
        return 1.0 - value if is_error else value

    def compute_many(
        evaluations: Evaluations, _privacy: PrivacyLedger | PrivacyLedgers
    ) -> NDArray[np.float64]:
        values = performances(evaluations, (split,), metric)[:, 0]
        return 1.0 - values if is_error else values

    name, open_ended = f"{split}_{measure}", metric == "loss"
    return Objective(name, unit, minimize, bounds, compute, compute_many, open_ended)


PERFORMANCE: Final[tuple[Objective, ...]] = tuple(
    performance_objective(split, measure)
    for split in ("val", "train", "test")
    for measure in _MEASURES
)
