"""Jobs in worker processes, one at a time each; an interrupt ends all of them within seconds.

`fedhpo-gym build` and the studies run their jobs through `WorkerPool`, or on a cluster through
`run_on_cluster`. The executors of the standard library assign jobs ahead, and compute all of those
before an interrupt or an error takes effect. Here a worker gets a job only when it is idle, and its
process is terminated when the pool closes. Jobs must therefore write their results atomically.
"""

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from fedhpo_gym.core.errors import (
    InvalidArgumentError,
    WorkerLostError,
    WorkerTimeoutError,
    require_known,
    require_optional,
)
from fedhpo_gym.core.plugins import import_plugins, plugin_modules

if TYPE_CHECKING:
    from distributed import Client

GRACE_S = 2.0
"""Seconds in which terminated workers may delete their temporary files."""

J_contra = TypeVar("J_contra", contravariant=True)
J = TypeVar("J")


class JobFunction(Protocol[J_contra]):
    """The function that workers apply to each job; it and the jobs are pickled."""

    def __call__(self, job: J_contra, advance: Callable[[], None], /) -> Any:
        """Do a job, call `advance` to report progress, and return a result for the caller."""


@dataclass(frozen=True)
class JobResult(Generic[J]):
    """How a job ended: its result, or the error that it raised or that ended its worker."""

    job: J
    result: Any = None
    error: Exception | None = None


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    jobs: list[Any] = field(default_factory=list)
    deadline: float = math.inf

    @property
    def busy(self) -> bool:
        return bool(self.jobs)


class WorkerPool(Generic[J]):
    """Worker processes, from the first job to the end of the `with` statement."""

    def __init__(self, size: int, work: JobFunction[J]) -> None:
        self._size = size
        self._work = work
        self._workers: list[_Worker] = []
        self._began = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        workers, self._workers = self._workers, []
        processes = [worker.process for worker in workers]
        try:
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + GRACE_S
            for process in processes:
                process.join(max(deadline - time.monotonic(), 0.0))
        finally:
            for process in processes:
                process.kill()

    def run(self, jobs: Iterable[J], advance: Callable[[], None]) -> list[Any]:
        """Start jobs in their order, and return their results in the order of completion."""
        results = []
        for job_result in self.run_each(jobs, advance):
            if job_result.error is not None:
                raise job_result.error
            results.append(job_result.result)
        return results

    def run_each(
        self, jobs: Iterable[J], advance: Callable[[], None], timeout_s: float = math.inf
    ) -> Iterator[JobResult[J]]:
        """Start jobs in their order, and yield how each ended; a failure stops no other job."""
        waiting = deque(jobs)
        while waiting or any(worker.busy for worker in self._workers):
            self._assign(waiting, timeout_s)
            busy = {w.connection: w for w in self._workers if w.busy}
            deadline = min(worker.deadline for worker in busy.values())
            remaining_s = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
            for connection in wait(list(busy), remaining_s):
                assert isinstance(connection, Connection)  # noqa: S101 - those passed to `wait`
                if job_result := self._receive(busy[connection], advance):
                    yield job_result
            for worker in busy.values():
                if worker.busy and time.monotonic() >= worker.deadline:
                    yield self._end_overdue(worker, timeout_s)

    def _receive(self, worker: _Worker, advance: Callable[[], None]) -> JobResult[J] | None:
        """Handle one message of a worker; return how its job ended, if it has."""
        try:
            event, content = worker.connection.recv()
        except (EOFError, OSError) as error:
            worker_lost = self._remove_lost(worker)
            worker_lost.__cause__ = error
            if not self._began:  # no other worker would start either
                raise worker_lost from error
            return JobResult(worker.jobs.pop(), error=worker_lost)
        if event == "started":
            self._began = True
            return None
        if event == "advanced":
            advance()
            return None
        job = worker.jobs.pop()
        if event == "failed":
            return JobResult(job, error=content)
        return JobResult(job, result=content)

    def _remove_lost(self, worker: _Worker) -> WorkerLostError:
        self._workers.remove(worker)
        worker.process.join(GRACE_S)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        ended = f"a worker process {how}"
        if not self._began:
            return WorkerLostError(
                f"{ended} before its work began: a script that starts workers needs "
                "`if __name__ == '__main__':` before the call, since workers import it"
            )
        return WorkerLostError(
            f"{ended} in the middle of its work, perhaps for want of memory; what was finished "
            "before is kept: run the same command again, with fewer workers"
        )

    def _end_overdue(self, worker: _Worker, timeout_s: float) -> JobResult[J]:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join(GRACE_S)
        error = WorkerTimeoutError(f"it exceeded its limit of {timeout_s:g} s, and was ended")
        return JobResult(worker.jobs.pop(), error=error)

    def _assign(self, waiting: deque[J], timeout_s: float = math.inf) -> None:
        idle = [worker for worker in self._workers if not worker.busy]
        while waiting and (idle or len(self._workers) < self._size):
            worker = idle.pop() if idle else self._start()
            worker.jobs.append(waiting.popleft())
            worker.deadline = time.monotonic() + timeout_s
            with suppress(OSError):  # it has ended: `_receive` reports it
                worker.connection.send(worker.jobs[0])

    def _start(self) -> _Worker:
        context = get_context("spawn")
        local_end, worker_end = context.Pipe()
        process = context.Process(target=_serve, args=(worker_end,), daemon=True)
        # An interrupt from the keyboard reaches the whole group of processes, but only this one
        # handles it: workers inherit the blocked signal, and here it waits until they have started.
        resource_tracker.ensure_running()  # else starting a process would unblock the signal
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            worker = _Worker(process, local_end)
            self._workers.append(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        worker_end.close()
        # As an argument of the process, a large function would fill the pipe, and the start would
        # block forever if the process is killed meanwhile.
        with suppress(OSError):  # it has ended: `_receive` reports it
            local_end.send(plugin_modules())
            try:
                local_end.send(self._work)
            except OSError:
                raise
            except Exception as error:
                raise InvalidArgumentError(
                    "what worker processes are sent must stand in a module that they can import, "
                    f"no lambda and no local function, but {error}"
                ) from error
        return worker


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM in the body as an interrupt from the keyboard, if this is the main thread.

    After the first signal both are ignored, so that a second one cannot interrupt the clean-up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    interrupted = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for ignored in signals:
            signal.signal(ignored, signal.SIG_IGN)
        signal.default_int_handler(signum, frame)

    previous = [signal.signal(signum, end) for signum in signals]
    try:
        yield
    finally:
        if not interrupted:
            for signum, handler in zip(signals, previous, strict=True):
                signal.signal(signum, handler or signal.SIG_DFL)


def _serve(connection: Connection) -> None:
    """Do jobs until the pool ends: the main function of a worker process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a worker, unless the user set it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        import_plugins(connection.recv())
        work: JobFunction[Any] = connection.recv()
        connection.send(("started", None))
        while True:
            job = connection.recv()
            try:
                message = "done", work(job, lambda: connection.send(("advanced", None)))
            except Exception as error:  # noqa: BLE001 - the pool raises it
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                message = "failed", error
            connection.send(message)


def _end_with_parent() -> None:
    """End this worker when the process of its pool ends, even if that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


CONNECT_S = 30.0
EXECUTORS: Final = ("processes", "dask")
"""Where jobs run: on this machine, or on a cluster."""


def check_executor(executor: str, address: str | None) -> None:
    """Check that an executor exists, and that a cluster has the address of a scheduler."""
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


def run_on_cluster(
    call: Callable[[J], Any], jobs: Sequence[J], address: str
) -> Iterator[JobResult[J]]:
    """Run jobs on a cluster, and yield how each ended, in the order of completion."""
    with _connect(address) as client:
        from distributed import KilledWorker, as_completed

        futures = {client.submit(call, job, pure=False): job for job in jobs}
        try:
            for future in as_completed(futures, loop=client.loop):
                fault = future.exception()
                if isinstance(fault, KilledWorker):
                    fault = WorkerLostError(f"the cluster lost it: {fault}")
                result = future.result() if fault is None else None
                yield JobResult(futures[future], result, fault)
                future.release()
        finally:
            client.cancel(list(futures))


def require_scheduler(address: str) -> None:
    """Check that the scheduler of a cluster can be reached, before any long computation."""
    with _connect(address):
        pass


def _connect(address: str) -> "Client":
    with require_optional("work on a cluster", "distributed", "cluster", "distributed"):
        from distributed import Client
        from distributed.comm import get_address_host_port
    try:
        # Parsed first, because a client with a malformed address is left half initialised, and
        # blocks the end of the interpreter for a minute.
        get_address_host_port(address)
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"`--address` must be that of a running dask scheduler, got {address!r}: {error}"
        ) from error
