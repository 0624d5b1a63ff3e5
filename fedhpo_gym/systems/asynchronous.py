"""What aggregations cost that wait for reports, and not for a cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems.base import Floats, Work
from fedhpo_gym.systems.devices import Availability, Draw

if TYPE_CHECKING:
    from fedhpo_gym.systems.base import System

COURSES: Final = 64
"""Simulated courses whose mean is the cost of planned aggregations."""


@dataclass(frozen=True, eq=False)
class JobDurations:
    """How long jobs of clients take on average: from the begin of one to its report."""

    other_s: Floats  # (clients,) seconds of transfers and waiting
    compute_s: Floats  # (clients,) seconds of computation
    dropout: float = 0.0  # probability that a job brings no report
    wait_s: Floats | float = 0.0  # (clients,) of `other_s`, the mean wait until one is available
    hours: Availability | None = None  # when clients are available; None: always

    @property
    def job_s(self) -> Floats:
        """(clients,) seconds of a job, waiting included."""
        return self.other_s + self.compute_s


@dataclass(frozen=True, eq=False)
class JobClock:
    """A system as the engine asks it: how long jobs of one course take."""

    system: System
    work: Work

    def __post_init__(self) -> None:
        self.system.job_means(self.work)

    @property
    def server_s(self) -> float:
        """Seconds of an aggregation."""
        return self.system.server_compute_s

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds of a client's `number`-th job of a course, and if it reports."""
        system_seed = int(getattr(self.system, "seed", 0))
        return self.system.job(self.work, client, start_s, Draw(seed, (system_seed, number)))


def cost(system: System, work: Work) -> Cost:
    """Return what some aggregations cost.

    Those that happened cost the virtual time that they took, planned ones what they are expected to
    take: in the long run where clients are always available, else in the mean of simulated courses.
    Computation is told apart from all other time by its share in the jobs of all clients.
    """
    means = system.job_means(work)
    arrive = 1.0 - means.dropout
    server_s = work.rounds * system.server_compute_s
    if work.happened is not None and work.happened.seconds is not None:
        flying_s = max(math.fsum(work.happened.seconds.tolist()) - server_s, 0.0)
    else:
        flying_s = _planned_s(system, work, means)[0] - server_s
    computation_s = flying_s * float(means.compute_s.sum() / means.job_s.sum()) + server_s
    communication_s = flying_s + server_s - computation_s
    up_bytes, down_bytes = system.message_bytes(work)
    reports = work.rounds * work.reports
    return Cost(
        time_s=flying_s + server_s,
        communication_s=communication_s,
        computation_s=computation_s,
        upload_bytes=reports * up_bytes,
        download_bytes=reports / arrive * down_bytes,
        rounds=work.rounds,
    )


def ample_s(system: System, work: Work) -> float:
    """Return the mean time of planned aggregations and four standard deviations of courses."""
    mean_s, deviation_s = _planned_s(system, work, system.job_means(work))
    return mean_s + 4.0 * deviation_s


def _planned_s(system: System, work: Work, means: JobDurations) -> tuple[float, float]:
    """Return the mean and the standard deviation of the seconds of planned aggregations.

    Without hours, the deviation is that of as many independent times between reports, as large as
    exponential jobs of these clients would make it.
    """
    if means.hours is None:
        job_s, reports = means.job_s, work.rounds * work.reports
        between_s = between_reports_s(job_s, work.sampled_clients) / (1.0 - means.dropout)
        spread = math.sqrt(1.0 + float(np.var(job_s)) / float(np.mean(job_s)) ** 2)
        mean_s = work.rounds * (work.reports * between_s) + work.rounds * system.server_compute_s
        return mean_s, between_s * spread * math.sqrt(reports)
    ends_s = _flights_s(
        np.ascontiguousarray(means.job_s - means.wait_s, np.float64).tobytes(),
        means.hours,
        1 << (work.rounds - 1).bit_length(),  # the first of more are the same
        work.reports,
        work.sampled_clients,
        means.dropout,
        system.server_compute_s,
        int(getattr(system, "seed", 0)),
    )
    own = ends_s[:, work.rounds - 1]
    return float(own.mean()), float(own.std())


@lru_cache(maxsize=64)
def _flights_s(
    job_s: bytes,
    hours: Availability,
    rounds: int,
    reports: int,
    at_once: int,
    dropout: float,
    server_s: float,
    seed: int,
) -> Floats:
    """Return the (courses, rounds) seconds after which aggregations of simulated courses end."""
    own_s, rng = np.frombuffer(job_s, np.float64), stream(seed, "planned_flights")
    number, course = len(own_s), np.arange(COURSES)
    # Of each course, those that train are the first `at_once`, the others are idle.
    client = rng.permuted(np.tile(np.arange(number), (COURSES, 1)), axis=1)
    now_s, arrived = np.zeros(COURSES), np.zeros(COURSES, np.int64)
    ends_s = np.full((COURSES, rounds), np.inf)

    def done_s(who: NDArray[np.integer], begin_s: Floats) -> Floats:
        done: Floats = begin_s + hours.wait_s(who % len(hours), begin_s) + own_s[who]
        return done

    flying_s = done_s(client[:, :at_once], np.zeros((COURSES, 1)))
    while arrived.min() < rounds * reports:
        place = np.argmin(flying_s, axis=1)
        now_s = flying_s[course, place]
        survives = rng.random(COURSES) >= dropout
        arrived += survives
        ready = survives & (arrived % reports == 0)
        within = ready & (arrived <= rounds * reports)
        now_s = now_s + np.where(ready, server_s, 0.0)
        flying_s += np.where(ready, server_s, 0.0)[:, None]
        ends_s[course[within], arrived[within] // reports - 1] = now_s[within]
        drawn = at_once - 1 + rng.integers(number - at_once + 1, size=COURSES)
        drawn = np.where(drawn == at_once - 1, place, drawn)  # whoever is done is idle, too
        leaving = client[course, place]
        client[course, place] = client[course, drawn]
        client[course, drawn] = leaving
        flying_s[course, place] = done_s(client[course, place], now_s)
    return ends_s


def between_reports_s(job_s: Floats, at_once: int) -> float:
    """Return the mean seconds between two reports, in the long run, of jobs of (clients,) seconds.

    M of N clients train at once. Whoever is done makes room for one of the idle, drawn uniformly.
    The clients that train are then a reversible process, in which a set S has a probability
    proportional to the product of its T_i, whatever the distributions of the times with these means
    are (the insensitivity of such systems; Kelly, 1979). So with the elementary symmetric
    polynomials e_k of T_1, ..., T_N the time between reports is e_M / ((N - M + 1) e_(M - 1)).
    """
    return _between_reports_s(np.ascontiguousarray(job_s, np.float64).tobytes(), at_once)


@lru_cache(maxsize=512)
def _between_reports_s(job_s: bytes, at_once: int) -> float:
    times = np.frombuffer(job_s, np.float64)
    unit = float(times.mean())
    logs = np.full(at_once + 1, -np.inf)  # of e_0, ..., e_M of the clients so far
    logs[0] = 0.0
    for log in np.log(times / unit).tolist():
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + log)
    return unit * math.exp(logs[-1] - logs[-2]) / (len(times) - at_once + 1)
