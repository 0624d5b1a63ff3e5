"""How methods of `profet_study.py` are judged over many tasks (Klein et al., 2019, section 4.2).

Lower values are better. Names of axes: M methods, I tasks, R runs, N evaluations, K targets, S
samples. `evaluation.stats.ecdf` of runtimes is the share of targets that were met by a time.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from scipy.stats import mannwhitneyu

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Axes, Range, validate_call
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import RESAMPLES, ranks

Runs = Annotated[Floats, Axes(3, 3)]
Methods = Annotated[Floats, Axes(4, 4)]
Samples = Annotated[Floats, Axes(2)]


@validate_call
def runtimes(values: Runs, targets: Annotated[Floats, Axes(2, 2)]) -> Floats:
    """Return (I, R, K): the first evaluation, from 1, of (I, R, N) that is at most each target.

    It is infinity where a run never meets one of its task's (I, K) targets.
    """
    found = np.empty((*values.shape[:2], targets.shape[1]))
    for task, (own, wanted) in enumerate(zip(values, targets, strict=True)):
        best = np.minimum.accumulate(own, axis=1)
        found[task] = (best[:, None, :] > wanted[:, None]).sum(axis=2) + 1.0
    return np.asarray(np.where(found > values.shape[2], np.inf, found))


@validate_call
def average_ranks(
    values: Methods, seed: int = 0, resamples: Annotated[int, Range(1)] = RESAMPLES
) -> Floats:
    """Return (M, N) mean ranks of the best so far of (M, I, R, N) runs, 1 the lowest.

    In each task, one run of every method is drawn again and again; ties share the mean rank.
    """
    best, rng = np.minimum.accumulate(values, axis=3), stream(seed, "average-ranks")
    methods, tasks, runs, _ = values.shape
    total = np.zeros(values.shape[::3])
    for task in range(tasks):
        drawn = best[np.arange(methods), task, rng.integers(runs, size=(resamples, methods))]
        total += ranks(drawn.transpose(0, 2, 1)).mean(axis=0).T
    return np.asarray(total / tasks)


@validate_call
def superiority(values: Samples) -> tuple[Floats, Floats]:
    """Compare every pair of methods by (..., M, S) errors: one-sided Mann-Whitney U tests.

    Returns:
        (..., M, M) p-values against "the column's error is not lower than the row's", small where
        the column's method is better, and as many shares: how often the column's is lower.
    """
    row, column = values[..., :, None, :], values[..., None, :, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        test = mannwhitneyu(
            column, row, use_continuity=False, alternative="less", axis=-1, method="asymptotic"
        )
    size = values.shape[-1]
    # All values the same: no evidence either way.
    return np.nan_to_num(test.pvalue, nan=0.5), 1.0 - test.statistic / size**2
