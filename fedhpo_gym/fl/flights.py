"""Who trains when, where nobody waits: virtual time of one asynchronous course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.packing import JobClock


class Job(NamedTuple):
    """What a client was sent to do; the earliest is done first.

    Attributes:
        done_s: when it is done.
        number: jobs of the course that were begun before.
        client: who does it.
        version: aggregations that the model had which the client received.
        reports: whether the report arrives; it is lost where a client drops out.
    """

    done_s: float
    number: int
    client: int
    version: int
    reports: bool


class Even:
    """The clock of clients that all take one second."""

    server_s = 0.0

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """See `JobClock.job`."""
        del seed, number, client, start_s
        return 1.0, True


@dataclass(frozen=True)
class Queue:
    """Where a course stands in virtual time.

    Attributes:
        now_s: seconds since its beginning.
        begun: number of jobs begun so far.
        flying: jobs that are not done.
    """

    now_s: float = 0.0
    begun: int = 0
    flying: tuple[Job, ...] = ()


@dataclass(frozen=True, eq=False)
class Flying:
    """What a course has begun: part of its state.

    Attributes:
        queue: the jobs, in virtual time.
        made: what will be reported, by number of the job.
    """

    queue: Queue
    made: Mapping[int, Any]


def until_aggregation(
    queue: Queue,
    version: int,
    *,
    reports: int,
    at_once: int,
    num_clients: int,
    clock: JobClock,
    seed: int,
) -> tuple[Queue, Sequence[Job], Sequence[Job]]:
    """Let clients train until there are enough reports for an aggregation.

    Whenever fewer than `at_once` clients train, an idle one begins, drawn uniformly. Reports of the
    same instant are collected before anybody begins. While the server aggregates, everything waits.

    Args:
        queue: where the course stands.
        version: aggregations that it has had.
        reports: that the aggregation waits for.
        at_once: clients that train at once.
        num_clients: clients of the federation.
        clock: how long they take.
        seed: what is drawn.

    Returns:
        where the course stands after the aggregation; the jobs that were begun; those that have
        reported, in the order of their arrival.
    """
    now_s, begun, flying = queue.now_s, queue.begun, list(queue.flying)
    started: list[Job] = []
    arrived: list[Job] = []
    while len(arrived) < reports:
        together = bool(flying) and min(flying).done_s <= now_s
        while len(flying) < at_once and not together:
            busy = {job.client for job in flying}
            idle = [client for client in range(num_clients) if client not in busy]
            drawn = stream(seed, "asynchronous clients", begun).integers(len(idle))
            client = idle[int(drawn)]
            seconds, survives = clock.job(seed, begun, client, now_s)
            started.append(Job(now_s + seconds, begun, client, version, survives))
            flying.append(started[-1])
            begun += 1
        job = min(flying)
        flying.remove(job)
        now_s = job.done_s
        if job.reports:
            arrived.append(job)
    later = tuple(job._replace(done_s=job.done_s + clock.server_s) for job in flying)
    return replace(queue, now_s=now_s + clock.server_s, begun=begun, flying=later), started, arrived
