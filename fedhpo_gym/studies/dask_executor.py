"""Cells on a cluster: the only door to dask.distributed.

Every worker of the cluster needs the package and a folder of the same path as here. Each cell runs
in an interpreter of its own beside the worker (`fedhpo_gym.studies.alone`): a worker may have many
threads, and a cell that crashes or hangs does not take it along. Where a worker is lost, the
scheduler gives its cells to another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedhpo_gym.errors import InvalidArgumentError, WorkerLostError, missing_dependency
from fedhpo_gym.studies.alone import run_alone
from fedhpo_gym.studies.cells import CellWork, Outcome
from fedhpo_gym.studies.plan import Plan

CONNECT_S = 30.0


def on_dask(
    cells: Sequence[Plan], work: CellWork, address: str | None, timeout_s: float = math.inf
) -> Iterator[Outcome]:
    """Do cells on a cluster, and yield how each ended, as it does.

    Args:
        cells: the cells.
        work: what is done with each.
        address: of the scheduler, such as `tcp://10.0.0.1:8786`.
        timeout_s: real seconds that a cell may take.

    Raises:
        InvalidArgumentError: there is no address, or no scheduler answers at it.
        MissingDependencyError: dask.distributed is not installed.
    """
    if address is None:
        raise InvalidArgumentError(
            "`--address` must name the scheduler for `--executor dask`, for example "
            "`tcp://10.0.0.1:8786`; `dask scheduler` prints it"
        )
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise missing_dependency("a study on a cluster", "distributed", "cluster") from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"`--address` must be that of a running dask scheduler, got {address!r}: {error}"
        ) from error
    seconds = None if timeout_s == math.inf else timeout_s
    with client:
        plans = {client.submit(run_alone, work, plan, seconds, pure=False): plan for plan in cells}
        try:
            for future in as_completed(plans, loop=client.loop):
                yield _outcome(future, plans[future])
                future.release()
        finally:
            client.cancel(list(plans))


def _outcome(future: Any, plan: Plan) -> Outcome:
    error = future.exception()
    if error is None:
        found: Outcome = future.result()
        return found
    lost = WorkerLostError(f"the cluster lost it: {type(error).__name__}: {error}")
    return Outcome.of_error(plan, lost)
