"""From the learning curves of a unit to the codes that are stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.best import best_rounds
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.tables import codec


def encode_curves(
    metrics: NDArray[np.floating],
    rounds: NDArray[np.int64],
    stored: NDArray[np.int64],
    samples: NDArray[np.int64],
) -> Iterator[tuple[str, NDArray[np.unsignedinteger]]]:
    """Yield name and codes of every array, for the courses of one seed.

    Best rounds are chosen among all evaluated rounds, before anything is rounded.

    Args:
        metrics: (courses, evaluated rounds, clients, splits, metrics).
        rounds: (evaluated rounds,) in increasing order.
        stored: the rounds to store; all of them were evaluated.
        samples: (clients, splits) of the seed.

    Yields:
        `best_round` with (courses, stored rounds), and `<which>_<split>_<metric>` with (courses,
        stored rounds, clients).
    """
    where = np.searchsorted(rounds, stored)
    best = best_rounds(metrics, samples)[:, where]
    yield "best_round", rounds[best].astype(np.uint16)
    courses = np.arange(len(metrics))[:, None]
    for which, index in (("best", best), ("current", where[None, :])):
        values = metrics[courses, index]
        for s, split in enumerate(SPLITS):
            for m, metric in enumerate(METRICS):
                codes = codec.encode(metric, values[..., s, m], samples[:, s])
                yield f"{which}_{split}_{metric}", codes
