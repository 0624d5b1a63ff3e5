"""How evenly the federated model serves its clients."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.objectives.base import Objective
from fedhpo_gym.objectives.privacy import PrivacyLedger
from fedhpo_gym.schema import SPLITS, Evaluation, Metric, Split

FAIRNESS_NAMES: Final = ("std", "p10", "p50", "p90", "worst", "jain")


def fairness_vector(values: ArrayLike) -> NDArray[np.float64]:
    """Return spread and tail of client-wise performance, averaged over seeds.

    Entries follow ``FAIRNESS_NAMES``: population standard deviation, the 10th, 50th and 90th
    percentile (linear interpolation), the worst client, and Jain's index
    ``(sum x)^2 / (n sum x^2)`` (Jain, Chiu and Hawe, 1984, Eq. 1), which is 1 when all clients
    are equal, all zeros included.

    Args:
        values: (S, N) performance of N clients under S seeds, higher is better; NaN marks a
            client without data, which is left out.

    Returns:
        (6,) the measures over clients of each seed, then their mean over seeds.

    Raises:
        InvalidArgumentError: The shape is not (S, N), or a seed has no client.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidArgumentError(f"`values` must have shape (S, N), got {array.shape}.")
    rows = [row[~np.isnan(row)] for row in array]
    if any(row.size == 0 for row in rows):
        raise InvalidArgumentError("`values` must have at least one client per seed, got only NaN.")
    per_seed: NDArray[np.float64] = np.array([_one_seed(row) for row in rows])
    return np.asarray(per_seed.mean(axis=0))


def client_fairness(
    evaluation: Evaluation, split: Split = "val", metric: Metric = "accuracy"
) -> NDArray[np.float64]:
    """Return the (6,) fairness vector of an evaluation, over the clients that have samples.

    Raises:
        UnknownNameError: The split or the metric does not exist.
        InvalidArgumentError: The metric is a loss (lower is better), or a seed has no client
            with samples in the split.
    """
    if metric == "loss":
        raise InvalidArgumentError(
            "`metric` must be one where higher is better, got 'loss'; use 'accuracy' or 'f1'."
        )
    values = evaluation.clients(split, metric)
    has_samples = evaluation.num_samples[:, :, SPLITS.index(split)] > 0
    return fairness_vector(np.where(has_samples, values, np.nan))


def fairness_objective(
    measure: str, split: Split = "val", metric: Metric = "accuracy"
) -> Objective:
    """Make the objective ``fairness_{measure}`` of client-wise performance.

    Args:
        measure: One of ``FAIRNESS_NAMES``.
        split: Where the performance is measured; other splits than ``"val"`` are named
            ``{split}_fairness_{measure}``.
        metric: ``"accuracy"`` or ``"f1"``.

    Raises:
        UnknownNameError: The measure or the split does not exist.
    """
    if measure not in FAIRNESS_NAMES:
        raise unknown_name("fairness measure", measure, FAIRNESS_NAMES)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    is_spread = measure == "std"
    # Values in [0, 1] spread most when half of them are 0 and half are 1.
    bounds = (0.0, 0.5 if is_spread else 1.0)
    position = FAIRNESS_NAMES.index(measure)

    def compute(evaluation: Evaluation, _privacy: PrivacyLedger) -> float:
        return float(client_fairness(evaluation, split, metric)[position])

    prefix = "" if split == "val" else f"{split}_"
    return Objective(f"{prefix}fairness_{measure}", "1", is_spread, bounds, compute)


def _one_seed(clients: NDArray[np.float64]) -> list[float]:
    """Return the six measures of (n,) clients."""
    square_sum = float(np.sum(clients**2))
    jain = float(np.sum(clients)) ** 2 / (clients.size * square_sum) if square_sum > 0 else 1.0
    p10, p50, p90 = np.percentile(clients, [10, 50, 90])
    return [float(np.std(clients)), float(p10), float(p50), float(p90), float(clients.min()), jain]


FAIRNESS: Final[tuple[Objective, ...]] = tuple(fairness_objective(name) for name in FAIRNESS_NAMES)
