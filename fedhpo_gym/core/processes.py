"""Jobs in worker processes: one each at a time, and an interrupt ends them all within seconds.

The executors of the standard library hand out jobs ahead and compute all of them before an
interrupt or an error gets through. Here a worker gets a job when it is idle, and whatever ends the
crew ends its workers, so jobs must leave their results whole or not at all.
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
"""Seconds that workers have to remove what they were writing."""

J_contra = TypeVar("J_contra", contravariant=True)
J = TypeVar("J")


class JobFunction(Protocol[J_contra]):
    """What workers do with a job; it and the jobs go to other processes, so they are pickled."""

    def __call__(self, job: J_contra, advance: Callable[[], None], /) -> Any:
        """Do a job, calling `advance` as it gets on, and return what the caller should know."""


@dataclass(frozen=True)
class JobResult(Generic[J]):
    """How a job ended: what it returned, or what it raised or became of its worker."""

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
        at: TracebackType | None,
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

    def do(self, jobs: Iterable[J], advance: Callable[[], None]) -> list[Any]:
        """Do jobs, in their order, and return what they returned, in the order they ended."""
        results = []
        for done in self.each(jobs, advance):
            if done.error is not None:
                raise done.error
            results.append(done.result)
        return results

    def each(
        self, jobs: Iterable[J], advance: Callable[[], None], timeout_s: float = math.inf
    ) -> Iterator[JobResult[J]]:
        """Do jobs, in their order, and yield how each ended, whatever became of the others."""
        waiting = deque(jobs)
        while waiting or any(worker.busy for worker in self._workers):
            self._hand_out(waiting, timeout_s)
            busy = {w.connection: w for w in self._workers if w.busy}
            first = min(worker.deadline for worker in busy.values())
            left = None if first == math.inf else max(first - time.monotonic(), 0.0)
            for connection in wait(list(busy), left):
                assert isinstance(connection, Connection)  # noqa: S101 - what was given to wait
                if done := self._heard(busy[connection], advance):
                    yield done
            for worker in busy.values():
                if worker.busy and time.monotonic() >= worker.deadline:
                    yield self._timed_out(worker, timeout_s)

    def _heard(self, worker: _Worker, advance: Callable[[], None]) -> JobResult[J] | None:
        """Take in what a worker says; return how its job ended, if it did."""
        try:
            said, content = worker.connection.recv()
        except (EOFError, OSError) as error:
            lost = self._lost(worker)
            lost.__cause__ = error
            if not self._began:  # nor would any other
                raise lost from error
            return JobResult(worker.jobs.pop(), error=lost)
        if said == "started":
            self._began = True
            return None
        if said == "advanced":
            advance()
            return None
        job = worker.jobs.pop()
        if said == "failed":
            return JobResult(job, error=content)
        return JobResult(job, result=content)

    def _lost(self, worker: _Worker) -> WorkerLostError:
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

    def _timed_out(self, worker: _Worker, timeout_s: float) -> JobResult[J]:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join(GRACE_S)
        error = WorkerTimeoutError(
            f"it took more than the {timeout_s:g} s that it may, and was ended"
        )
        return JobResult(worker.jobs.pop(), error=error)

    def _hand_out(self, waiting: deque[J], timeout_s: float = math.inf) -> None:
        idle = [worker for worker in self._workers if not worker.busy]
        while waiting and (idle or len(self._workers) < self._size):
            worker = idle.pop() if idle else self._start()
            worker.jobs.append(waiting.popleft())
            worker.deadline = time.monotonic() + timeout_s
            with suppress(OSError):  # it has ended: reading from it tells
                worker.connection.send(worker.jobs[0])

    def _start(self) -> _Worker:
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        # An interrupt from the keyboard reaches the whole group of processes. Workers leave it to
        # this one: they inherit that it is blocked, and here it waits until they have started.
        resource_tracker.ensure_running()  # else starting a process would unblock it again
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            worker = _Worker(process, here)
            self._workers.append(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        there.close()
        # Not an argument of the process: starting one that is killed meanwhile would wait for ever
        # where it does not fit into a pipe.
        with suppress(OSError):  # it has ended: reading from it tells
            here.send(plugin_modules())
            try:
                here.send(self._work)
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
    """Let SIGTERM do in the body what an interrupt from the keyboard does, in the main thread.

    The first of either is the last: two quick ones cannot end the cleaning up halfway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGINT, signal.SIGTERM)
    interrupted = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for one in ending:
            signal.signal(one, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    old = [signal.signal(one, end) for one in ending]
    try:
        yield
    finally:
        if not interrupted:
            for one, handler in zip(ending, old, strict=True):
                signal.signal(one, handler or signal.SIG_DFL)


def _serve(connection: Connection) -> None:
    """Do jobs until the crew ends: what a worker process runs, on one thread unless told."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
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
            except Exception as error:  # noqa: BLE001 - the crew raises it
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                message = "failed", error
            connection.send(message)


def _end_with_parent() -> None:
    """End a worker whose crew was killed, whether it works or waits for work."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


CONNECT_S = 30.0
EXECUTORS: Final = ("processes", "dask")
"""Where jobs are done: on this machine, or on a cluster."""


def check_executor(executor: str, address: str | None) -> None:
    """Refuse an executor that does not exist, or a cluster without a scheduler."""
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
    """Do jobs on a cluster, and yield how each ended, as it does."""
    with _connected(address) as client:
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
    """Check that a cluster can be had, before anything is computed for it."""
    with _connected(address):
        pass


def _connected(address: str) -> "Client":
    with require_optional("work on a cluster", "distributed", "cluster", "distributed"):
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
