"""From the learning curves of a unit to the codes that are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import best_rounds
from fedhpo_gym.tables import codec


def encode_curves(
    metrics: NDArray[np.floating],
    rounds: NDArray[np.int64],
    stored: NDArray[np.int64],
    samples: NDArray[np.int64],
    axes: tuple[Sequence[str], Sequence[str]],
) -> Iterator[tuple[str, NDArray[np.unsignedinteger]]]:
    """Yield name and codes of every array, for the courses of one seed.

    Best rounds are chosen among all evaluated rounds, before anything is rounded.

    Args:
        metrics: (courses, evaluated rounds, clients, splits, metrics).
        rounds: (evaluated rounds,) in increasing order.
        stored: the rounds to store; all of them were evaluated.
        samples: (clients, splits) of the seed.
        axes: names of the splits and of the metrics, in the order of their axes.

    Raises:
        InvalidArgumentError: `axes` names other axes than `metrics` has.
        UnknownNameError: no code is known for a metric.

    Yields:
        `best_round` with (courses, stored rounds), and `<which>_<split>_<metric>` with (courses,
        stored rounds, clients).
    """
    splits, names = axes
    if metrics.shape[-2:] != (len(splits), len(names)):
        raise InvalidArgumentError(
            f"`axes` must name {metrics.shape[-2]} splits and {metrics.shape[-1]} metrics, which "
            f"were measured of every course, got {axes!r}; see `Problem.metrics`"
        )
    where = np.searchsorted(rounds, stored)
    best = best_rounds(metrics, samples)[:, where]
    yield "best_round", rounds[best].astype(np.uint16)
    courses = np.arange(len(metrics))[:, None]
    for which, index in (("best", best), ("current", where[None, :])):
        values = metrics[courses, index]
        for s, split in enumerate(splits):
            for m, metric in enumerate(names):
                codes = codec.encode(metric, values[..., s, m], samples[:, s])
                yield f"{which}_{split}_{metric}", codes
