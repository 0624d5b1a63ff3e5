"""Cells on a cluster.

Each cell runs in an interpreter of its own beside the worker (`fedhpo_gym.studies.alone`): a worker
may have many threads, and a cell that crashes or hangs does not take it along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from fedhpo_gym.cluster import each_on_cluster
from fedhpo_gym.errors import WorkerLostError
from fedhpo_gym.studies.alone import run_alone
from fedhpo_gym.studies.cells import CellWork, Outcome
from fedhpo_gym.studies.plan import Plan


def on_dask(
    cells: Sequence[Plan], work: CellWork, address: str, timeout_s: float = math.inf
) -> Iterator[Outcome]:
    """Do cells on a cluster, and yield how each ended, as it does.

    Args:
        cells: the cells.
        work: what is done with each.
        address: of the scheduler.
        timeout_s: real seconds that a cell may take.

    Raises:
        InvalidArgumentError: no scheduler answers at the address.
        MissingDependencyError: dask.distributed is not installed.
    """
    seconds = None if timeout_s == math.inf else timeout_s
    for done in each_on_cluster(partial(run_alone, work, timeout_s=seconds), cells, address):
        if done.error is None:
            yield done.result
            continue
        words = f"the cluster lost it: {type(done.error).__name__}: {done.error}"
        yield Outcome.of_error(done.job, WorkerLostError(words))
