"""Jobs on a cluster: the only door to dask.distributed.

Every worker of the cluster needs the package and the folders that jobs write to, under the same
paths as here. Where a worker is lost, the scheduler gives its jobs to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fedhpo_gym.errors import InvalidArgumentError, WorkerLostError, needing, require_known
from fedhpo_gym.processes import Done

if TYPE_CHECKING:
    from distributed import Client

J = TypeVar("J")
CONNECT_S = 30.0
EXECUTORS: Final = ("processes", "dask")
"""Where jobs are done: on this machine, or on a cluster."""


def check_executor(executor: str, address: str | None) -> None:
    """Refuse an executor that does not exist, or a cluster without a scheduler.

    Raises:
        InvalidArgumentError: `address` and executor do not fit together.
        UnknownNameError: there is no such executor.
    """
    require_known("executor", executor, EXECUTORS)
    if executor == "dask" and address is None:
        raise InvalidArgumentError(
            "`--address` must name the scheduler for `--executor dask`, for example "
            "`tcp://10.0.0.1:8786`; `dask scheduler` prints it"
        )
    if executor != "dask" and address is not None:
        raise InvalidArgumentError(
            f"`--address` is for `--executor dask`, got {address!r} with {executor!r}"
        )


def each_on_cluster(call: Callable[[J], Any], jobs: Sequence[J], address: str) -> Iterator[Done[J]]:
    """Do jobs on a cluster, and yield how each ended, as it does.

    Args:
        call: what is done with a job; it and the jobs are pickled on their way to the workers.
        jobs: the jobs.
        address: of the scheduler, such as `tcp://10.0.0.1:8786`.

    Raises:
        InvalidArgumentError: no scheduler answers at the address.
        MissingDependencyError: dask.distributed is not installed.
    """
    with _connected(address) as client:
        from distributed import KilledWorker, as_completed

        futures = {client.submit(call, job, pure=False): job for job in jobs}
        try:
            for future in as_completed(futures, loop=client.loop):
                fault = future.exception()
                if isinstance(fault, KilledWorker):
                    fault = WorkerLostError(f"the cluster lost it: {fault}")
                result = future.result() if fault is None else None
                yield Done(futures[future], result, fault)
                future.release()
        finally:
            client.cancel(list(futures))


def require_scheduler(address: str) -> None:
    """Check that a cluster can be had, before anything is computed for it.

    Args:
        address: of the scheduler.

    Raises:
        InvalidArgumentError: no scheduler answers at the address.
        MissingDependencyError: dask.distributed is not installed.
    """
    with _connected(address):
        pass


def _connected(address: str) -> Client:
    with needing("work on a cluster", "distributed", "cluster", "distributed"):
        from distributed import Client
        from distributed.comm import get_address_host_port
    try:
        # A client whose address cannot be read stays half-made: when the interpreter ends, it waits
        # a minute for a thread that is gone.
        get_address_host_port(address)
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"`--address` must be that of a running dask scheduler, got {address!r}: {error}"
        ) from error
