"""From learning curves to f: the best round so far, and the metrics there."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Axes, checked_types
from fedhpo_gym.evaluation.records import Evaluation, Fidelity


@checked_types
def best_rounds(
    metrics: Annotated[NDArray[np.floating], Axes(5, 5, nan=True)],
    num_samples: Annotated[NDArray[np.integer], Axes(2, 2)],
) -> NDArray[np.int64]:
    """Return the index of the round with the lowest validation loss so far, for every round.

    The validation loss of a round is the sample-weighted mean over clients; the first of equal
    losses counts.

    Args:
        metrics: (courses, rounds, clients, splits, metrics).
        num_samples: (clients, splits).

    Returns:
        (courses, rounds) indices into the rounds axis.
    """
    weights = num_samples[:, 1] / num_samples[:, 1].sum()
    # A sum in a fixed order: a matrix product may round differently for another number of courses.
    loss = sum(metrics[:, :, i, 1, 0].astype(np.float64) * w for i, w in enumerate(weights))
    lowest = np.minimum.accumulate(loss, axis=1)
    improved = np.ones(loss.shape, dtype=bool)
    improved[:, 1:] = loss[:, 1:] < lowest[:, :-1]
    rounds = np.arange(loss.shape[1])
    return np.maximum.accumulate(np.where(improved, rounds, 0), axis=1)


def evaluation_of(
    metrics: NDArray[np.floating],
    rounds: NDArray[np.integer],
    diverged_at: NDArray[np.integer],
    num_samples: NDArray[np.integer],
    seeds: tuple[int, ...],
    fidelity: Fidelity,
) -> Evaluation:
    """Return what learning curves answer at a fidelity.

    Args:
        metrics: (seeds, R, clients, splits, metrics) curves that reach the fidelity's round.
        rounds: (R,) rounds after which the models were evaluated.
        diverged_at: (seeds,) the round in which a course left the finite numbers; 0 for never.
        num_samples: (seeds, clients, splits).
        seeds: of the courses.
        fidelity: what was asked for.
    """
    known = metrics[:, : np.searchsorted(rounds, fidelity.round, "right")]
    best = np.stack(
        [best_rounds(known[[row]], num_samples[row])[0, -1] for row in range(len(seeds))]
    )
    return Evaluation(
        best=known[np.arange(len(best)), best],
        current=known[:, -1].copy(),  # the curve is kept: nobody may write into it
        num_samples=num_samples,
        best_round=rounds[best],
        diverged=(diverged_at > 0) & (diverged_at <= fidelity.round),
        seeds=seeds,
        fidelity=fidelity,
    )
